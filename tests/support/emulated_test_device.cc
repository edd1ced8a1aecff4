#include "kernels/emulation/device.h"
#include "tests/support/test_device.h"

namespace sluice::test {

std::unique_ptr<Device> make_test_device() { return emulation::make_device({}); }

}  // namespace sluice::test
