#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "sim/planner/plan.h"
#include "tools/command/calibration_warning.h"
#include "tools/plan/frameworks.h"

namespace sluice::tools {

// A searched plan, and how to print it.
struct PlanReport {
  const Plan* plan = nullptr;
  int top = 10;
  std::optional<PredictedInterval> interval;  // of the fastest
  DifferenceErrors errors;                    // of the class of the fastest, or over all measured runs
  double model_error = 0;                     // relative error of the difference between two configurations
  int shortlist = 0;                          // number of configurations to name for measurements
  double seconds = 0;                         // search time
  bool interrupted = false;
  nlohmann::json document = {};          // the scenario document, for the assumptions of the fastest
  std::vector<int> show = {};            // rows to print in full, from 1
  const Framework* framework = nullptr;  // that runs all configurations; null: any
};

// Returns "384 of 384 GPUs, 48 x dgx-h100": those that a plan uses, and those of the cluster.
std::string gpus_text(const Scenario& base, const PlanSpace& space);

// Throws InputError for a row to print that the ranking does not have.
void check_shown(const PlanReport& report);

// Returns the text for the terminal: GPUs, counts, what was searched, ranking, why a faster one is not first, Pareto
// front, how the framework runs the best configuration or which is the best that each framework runs, and the rows to
// print in full.
std::string plan_table(const PlanReport& report);
// Returns JSON, schema sluice.plan/1: the ranking of all simulated configurations that fit, and the status of the
// others.
std::string plan_json(const PlanReport& report);
// Returns CSV with one row per configuration, ranked ones first.
std::string plan_csv(const Plan& plan);

// Returns the reason why the first configuration is invalid if all are; otherwise "".
std::string plan_invalid(const Plan& plan);
// Returns the reason why no configuration fits, with the smallest one. Empty if one fits.
std::string plan_refusal(const Plan& plan);

}  // namespace sluice::tools
