#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/planner/partition.h"
#include "sim/planner/plan_space.h"

namespace sluice::tools {

// Returns the only configuration of a space. Throws InputError that names the flags on which several differ.
PlanPoint only_configuration(const Scenario& base, const PlanSpace& space);

// A searched partition of one configuration, and how to print it.
struct PartitionReport {
  const Scenario& base;
  const PlanSpace& space;
  const nlohmann::json& document;  // that specifies the base
  PlanPoint point;                 // with the layers of `found`
  Partition found;
  double seconds = 0;  // search time
  bool interrupted = false;
};

// Returns the text for the terminal: the layout, its time and bound, and the memory of each rank.
std::string partition_table(const PartitionReport& report);
// Returns JSON, schema sluice.partition/1.
std::string partition_json(const PartitionReport& report);
// Returns why no partition fits, or an empty text.
std::string partition_refusal(const PartitionReport& report);

}  // namespace sluice::tools
