#pragma once

#include <atomic>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/planner/plan.h"
#include "tools/plan/frameworks.h"
#include "tools/plan/plan_output.h"

namespace sluice::tools {

// What `sluice plan` searches, besides the scenario document.
struct PlanRequest {
  std::string file;
  PlanSpace space;
  std::vector<std::string> schedules;
  std::string runs_on = "any";
  std::vector<std::string> distributed_optimizer;
  std::vector<std::string> overlap_grad_reduce;
  std::vector<std::string> overlap_param_gather;
  std::vector<std::string> mapping;
  std::string slicing = "balanced";
  int microbatches = 0;  // gives the global batch, with dp and the micro batch; 0: the scenario's
  bool no_sequence_parallel = false;
  bool even_stages = false;
  bool everything = false;
  bool refine = true;  // searches the partitions of the leaders, unless all stages must be even
  int top = 10;
  int shortlist = 0;
  std::vector<int> show;  // rows to print in full, from 1
  // Relative error of the predicted difference between two configurations of a model on a cluster; by default that of
  // the class of measured runs (model/scenario/error_classes.h) of the fastest.
  std::optional<double> model_error;
  double memory_margin = -1;  // the GPU's
};

// Returns the space of a request. Throws InputError.
PlanSpace space_of(const PlanRequest& request);

// Returns the scenario without the keys that the plan chooses. Its number of GPUs is that of `space`, or that of the
// scenario if the space has none. For a `partition`, sets what the space leaves open to the scenario's values. Throws
// InputError.
Scenario base_scenario(const PlanRequest& request, nlohmann::json document, bool partition, PlanSpace& space);

// Returns the plan to search. Throws InputError.
Plan plan_of(const PlanRequest& request, const nlohmann::json& document);

// After the search: refines the leaders unless all stages must be even.
void refine_plan(Plan& plan, const PlanRequest& request, const std::atomic<bool>* stop);

// Returns how to print the plan.
PlanReport report_of(const Plan& plan, const PlanRequest& request);

// Returns a line each about the keys of the scenario file that give a plan the number of GPUs or the global batch only,
// and about those that it ignores.
std::vector<std::string> notes_of_plan(const PlanRequest& request, const nlohmann::json& document, const Plan& plan);

// Throws InputError for a plan of which all configurations are invalid, with what the flags and the file specify.
[[noreturn]] void throw_invalid(const PlanRequest& request, const nlohmann::json& document, const Plan& plan,
                                std::string reason);

// Searches the plan in this process, and returns JSON, schema sluice.plan/1; "" once `stop` is set. Throws InputError,
// also if all configurations are invalid, and DoesNotFit if none fits.
std::string searched_plan(const PlanRequest& request, const nlohmann::json& document, const std::atomic<bool>& stop);

}  // namespace sluice::tools
