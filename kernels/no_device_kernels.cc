// A build without device kernels.

#include "kernels/device_kernels.h"

namespace sluice::kernels {

const DeviceKernels* device_kernels() { return nullptr; }

}  // namespace sluice::kernels
