#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "kernels/device.h"
#include "kernels/emulation/block.h"

namespace sluice::kernels::emulation {

// A device whose kernels run on host threads, one per stream, so that streams are as independent as those of a GPU.
// Slow: for tests. Stream::native returns the Stream itself.
struct EmulatedDeviceSpec {
  std::string name = "emulated device";
  int ordinal = 0;
  int multiprocessors = 4;
  int compute_capability = 80;
  std::int64_t memory_bytes = std::int64_t{1} << 30;
  ExecutionOrder order;
};
std::unique_ptr<Device> make_device(const EmulatedDeviceSpec& spec);

// Enqueues `task` on a stream of an emulated device. The device's next `done` or `synchronize` throws its exception as
// DeviceError.
void put(Stream& stream, std::function<void()> task);

// Runs the blocks of a grid sequentially; see run_block.
void run_grid(const std::array<int, 3>& blocks, int threads, int shared_bytes, const std::function<void()>& body);

}  // namespace sluice::kernels::emulation
