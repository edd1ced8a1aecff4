#pragma once

#include <span>

namespace sluice::tools {

// Groups of flags in help texts.
namespace flag_groups {
inline constexpr const char* kSchedule = "Schedule";
inline constexpr const char* kAutomaticSchedule = "Automatic schedule (--schedule auto)";
inline constexpr const char* kParallelism = "Parallelism";
inline constexpr const char* kBatch = "Batch";
inline constexpr const char* kModel = "Model";
inline constexpr const char* kCluster = "Cluster and framework";
inline constexpr const char* kCost = "Cost";
inline constexpr const char* kPerturbation = "Stragglers and noise";
}  // namespace flag_groups

enum class ScenarioValueKind { whole, real, text, name, path, whole_list, text_list, yes };  // name: or a file

// A flag that sets one key of the scenario.
struct ScenarioFlagRow {
  const char* names;    // CLI11's list
  const char* pointer;  // of the scenario's key
  ScenarioValueKind kind;
  const char* group;
  const char* help;
  const char* words = "";  // all values of a text, as a,b,c
};

// The flags of all commands that take a scenario.
std::span<const ScenarioFlagRow> scenario_flag_rows();

}  // namespace sluice::tools
