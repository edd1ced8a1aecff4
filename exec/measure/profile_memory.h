#pragma once

#include "exec/measure/profiling.h"
#include "model/cost/cost_table.h"

namespace sluice::exec {

// Returns the memory of the parts of a model's stages as the kernels lay it out, for whole and cut sequences and with
// and without recomputation, at the lengths of the measured slices. Empty for models with experts.
RunMemory memory_of_parts(const ProfilingSpec& spec);

}  // namespace sluice::exec
