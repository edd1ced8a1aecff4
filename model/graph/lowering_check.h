#pragma once

#include "model/graph/lowering.h"

namespace sluice::model {

// Throws InputError for options that the schedule does not support.
void check_options(const Schedule& schedule, const LoweringOptions& options);

}  // namespace sluice::model
