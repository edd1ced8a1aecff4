#pragma once

#include <memory>

#include "kernels/stage.h"

namespace sluice::kernels::cuda {

// DeviceKernels::make_stage. Throws InputError for what rank_sizes refuses, and for other precisions than 16-bit ones.
std::unique_ptr<Stage> make_stage(const StageSpec& spec, Precision precision);

}  // namespace sluice::kernels::cuda
