#pragma once

#include "model/graph/lowering.h"

namespace sluice::model {

// Throws InputError for options that the schedule does not support.
void check_options(const Schedule& schedule, const LoweringOptions& options);

// Returns the stages, in order, that share a weight: the word embedding, which is also that of a tied head and of
// multi-token prediction, and an output layer of which there are several. Without such stages nothing.
std::vector<std::vector<int>> shared_weights(const Schedule& schedule, const LoweringOptions& options);

}  // namespace sluice::model
