#pragma once

#include <string>

#include "model/scenario/scenario.h"

namespace sluice::imports {

// Returns the arguments of Megatron-LM's pretraining script for the scenario: model, batch and parallelism, with a
// layout of the stages where their numbers of layers need one (model/scenario/pipeline_layout.h). The scenario has a
// model, a family and the numbers of chunks and microbatches, such as those that a plan finds.
std::string megatron_arguments(const Scenario& scenario);

}  // namespace sluice::imports
