#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "model/scenario/scenario.h"

namespace sluice::tools {

// The flags that name parts of a scenario, in our spelling and Megatron's. They are laid over the scenario file, if one
// is given, key by key, so that file and flags are read and checked in one place.
class ScenarioFlags {
 public:
  // Adds the flags to `command`. Must outlive its parsing.
  explicit ScenarioFlags(CLI::App& command);
  ~ScenarioFlags();

  // Throws InputError.
  Scenario scenario(const std::string& file) const;
  // The document that was read: the file with the flags laid over it.
  nlohmann::json document(const std::string& file) const;

 private:
  struct Values;
  std::unique_ptr<Values> values_;
};

}  // namespace sluice::tools
