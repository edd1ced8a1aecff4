#include <utility>

#include "exec/device/provider.h"
#include "tests/support/test_device.h"

namespace sluice::test {

std::unique_ptr<Device> make_test_device() {
  if (!why_no_devices().empty()) return nullptr;
  return std::move(device_provider()->open({.kind = DeviceRequest::gpu, .count = 1}).front());
}

}  // namespace sluice::test
