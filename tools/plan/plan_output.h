#pragma once

#include <string>

#include "sim/planner/plan.h"

namespace sluice::tools {

// What was found of a plan, and how to show it.
struct PlanReport {
  const Plan* plan = nullptr;
  int top = 10;
  double model_error = 0;  // relative, of the difference between two configurations
  double seconds = 0;      // that the search took
  bool interrupted = false;
};

// The terminal's: what became of how many, the ranking, the Pareto front, and how Megatron-LM is started on the best.
std::string plan_table(const PlanReport& report);
// Schema sluice.plan/1: the ranking of all that was simulated and fits, and what became of all others.
std::string plan_json(const PlanReport& report);
// A row for every configuration, ranked ones first.
std::string plan_csv(const Plan& plan);

// Why nothing fits: the configuration that comes closest. Empty if one fits.
std::string plan_refusal(const Plan& plan);

}  // namespace sluice::tools
