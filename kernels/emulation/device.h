#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "kernels/device.h"
#include "kernels/emulation/block.h"

namespace sluice::kernels::emulation {

// A device whose kernels run on threads of the host, one for each stream, so that streams are as independent of each
// other as a GPU's. Not fast: for proofs. Stream::native is the Stream itself.
struct EmulatedDeviceSpec {
  std::string name = "emulated device";
  int ordinal = 0;
  int multiprocessors = 4;
  int compute_capability = 80;
  std::int64_t memory_bytes = std::int64_t{1} << 30;
  Schedule schedule;
};
std::unique_ptr<Device> make_device(const EmulatedDeviceSpec& spec);

// Puts `task` on a stream of such a device. What it throws comes out of the device's next `done` or `synchronize`, as
// DeviceError.
void put(Stream& stream, std::function<void()> task);

// Runs a grid of blocks one after the other; see run_block.
void run_grid(const std::array<int, 3>& blocks, int threads, int shared_bytes, const std::function<void()>& body);

}  // namespace sluice::kernels::emulation
