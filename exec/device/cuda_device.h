#pragma once

#include <memory>
#include <optional>
#include <string>

#include "exec/device/green_contexts.h"
#include "kernels/device.h"

namespace sluice::exec {

// Opens a GPU, or a partition of one; see Device. GEMMs of all streams share one workspace: those of one stream run
// after those of another. Throws DeviceError, also if cuBLAS is not found.
std::unique_ptr<Device> make_cuda_device(int ordinal, std::string name, std::optional<GreenPartition> partition);

}  // namespace sluice::exec
