#pragma once

#include <memory>

#include "kernels/stage.h"

namespace sluice::kernels::cuda {

// Implements DeviceKernels::make_stage. Throws InputError as rank_sizes does, and for precisions other than 16-bit.
std::unique_ptr<Stage> make_stage(const StageSpec& spec, Precision precision);

}  // namespace sluice::kernels::cuda
