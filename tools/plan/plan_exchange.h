#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/planner/plan.h"

namespace sluice::tools {

// What one process worked out of a round.
struct PlanPart {
  std::vector<Plan::Work> work;
  std::vector<PlanResult> results;  // one for each of its work
  bool interrupted = false;
};

// Between processes of one program; times and figures arrive as they were.
std::string to_bytes(std::span<const Plan::Work> work, std::span<const PlanResult> results, bool interrupted);
PlanPart plan_part_of(const std::string& bytes);

}  // namespace sluice::tools
