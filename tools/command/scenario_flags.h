#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <span>
#include <string_view>

#include "model/scenario/scenario.h"

namespace sluice::tools {

// The flags that name parts of a scenario, in our spelling and Megatron's. They are laid over the scenario file, if one
// is given, key by key, so that file and flags are read and checked in one place.
class ScenarioFlags {
 public:
  // Adds the flags to `command`, but for those `without`, by their first names ("--pp"). Must outlive its parsing.
  explicit ScenarioFlags(CLI::App& command, std::span<const std::string_view> without = {});
  ~ScenarioFlags();

  // The file, if one is given, with the flags laid over it. Throws InputError.
  nlohmann::json document(const std::string& file) const;
  // Reads such a document; errors name flags where no file was given. Throws InputError.
  static Scenario read(const nlohmann::json& document, const std::string& file);
  Scenario scenario(const std::string& file) const;

  // Sets one key of a document, named by a flag ("pp", "--pp") or by its place in the scenario ("parallelism/pp"), and
  // drops what says the same in another way. The value is JSON, or else text. Throws InputError for an unknown name.
  static void set(nlohmann::json& document, const std::string& key, const std::string& value, const std::string& file);

 private:
  void add_uniform(CLI::App& command);
  void add_slow(CLI::App& command);

  struct Values;
  std::unique_ptr<Values> values_;
};

}  // namespace sluice::tools
