#include "exec/device/provider.h"

namespace sluice::exec {

std::string why_no_devices() {
  const DeviceProvider* const provider = device_provider();
  return provider == nullptr ? "this build has no CUDA kernels" : provider->why_none();
}

}  // namespace sluice::exec
