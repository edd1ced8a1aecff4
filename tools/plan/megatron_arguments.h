#pragma once

#include <string>

#include "sim/planner/plan_space.h"

namespace sluice::tools {

// Returns whether Megatron-LM supports a configuration: a schedule family of its own, whole sequences, and equal stages
// except the first and last.
bool megatron_runs(const Scenario& base, const PlanPoint& point);

// Returns the arguments of its pretraining script for the configuration: model, batch and parallelism.
std::string megatron_arguments(const Scenario& base, const PlanSpace& space, const PlanPoint& point);

}  // namespace sluice::tools
