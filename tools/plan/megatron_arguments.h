#pragma once

#include <string>

#include "sim/planner/plan_space.h"

namespace sluice::tools {

// Whether Megatron-LM runs a configuration: its schedules are 1F1B and interleaved 1F1B, of whole sequences, and its
// stages are equal but for the outer ones.
bool megatron_runs(const Scenario& base, const PlanPoint& point);

// The arguments of its pretraining script that say the same as the configuration: model, batch, parallelism.
std::string megatron_arguments(const Scenario& base, const PlanSpace& space, const PlanPoint& point);

}  // namespace sluice::tools
