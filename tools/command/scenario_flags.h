#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "model/scenario/scenario.h"

namespace sluice::tools {

// The flags that set keys of a scenario, in Sluice's spelling and Megatron-LM's. Flags override the keys of a scenario
// file, so that both are read and checked in one place.
class ScenarioFlags {
 public:
  // Adds the flags to `command`, except those `without`, given by their first names ("--pp"). Must outlive the parsing.
  explicit ScenarioFlags(CLI::App& command, std::span<const std::string_view> without = {});
  ~ScenarioFlags();

  // Returns the contents of a scenario file, which is read once, so that it may be a pipe. Throws InputError.
  const std::string& file_text(const std::string& file) const;
  // Returns the scenario document: the file, if `file` is not empty, overridden by the flags. Throws InputError.
  nlohmann::json document(const std::string& file) const;
  // Reads such a document. Without a file, errors name flags instead of keys. Throws InputError.
  static Scenario read(const nlohmann::json& document, const std::string& file);
  Scenario scenario(const std::string& file) const;

  // Sets a key of a document, named by a flag ("pp", "--pp") or by its path in the scenario ("parallelism/pp"), and
  // removes the keys that it excludes. The value is JSON, or else text. Throws InputError for an unknown name.
  static void set(nlohmann::json& document, const std::string& key, const std::string& value, const std::string& file);

 private:
  void add_uniform(CLI::App& command);
  void add_slow(CLI::App& command);

  struct Values;
  std::unique_ptr<Values> values_;
};

// Returns a warning if the scenario's calibration was made from another model, framework, precision or GPU; "" if not.
std::string calibration_warning(const Scenario& scenario);

}  // namespace sluice::tools
