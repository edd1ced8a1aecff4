#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/planner/plan.h"

namespace sluice::tools {

// The results of one process in a round.
struct PlanPart {
  std::vector<Plan::Work> work;
  std::vector<PlanResult> results;  // one per element of `work`
  bool interrupted = false;
};

// Encode and decode a part for exchange between processes; all values stay exact. Work that was stopped is left out.
std::string to_bytes(std::span<const Plan::Work> work, std::span<const PlanResult> results, bool interrupted);
PlanPart plan_part_of(const std::string& bytes);

}  // namespace sluice::tools
