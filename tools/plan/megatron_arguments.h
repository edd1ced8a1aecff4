#pragma once

#include <string>

#include "sim/planner/plan_space.h"

namespace sluice::tools {

// Returns the arguments of Megatron-LM's pretraining script for the configuration: model, batch and parallelism, with a
// layout of the stages where their numbers of layers need one (model/scenario/pipeline_layout.h).
std::string megatron_arguments(const Scenario& base, const PlanSpace& space, const PlanPoint& point);

}  // namespace sluice::tools
