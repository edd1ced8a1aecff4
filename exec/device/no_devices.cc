// A build without devices.

#include "exec/device/provider.h"

namespace sluice::exec {

const DeviceProvider* device_provider() { return nullptr; }

}  // namespace sluice::exec
