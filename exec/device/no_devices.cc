// A build without devices.

#include "exec/device/provider.h"
#include "kernels/device_kernels.h"

namespace sluice::exec {

const DeviceProvider* device_provider() { return nullptr; }
const DeviceKernels* device_kernels() { return nullptr; }

}  // namespace sluice::exec
