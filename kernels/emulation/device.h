#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>

#include "kernels/device.h"
#include "kernels/emulation/block.h"

namespace sluice::kernels::emulation {

// Calls of the devices that share one of these, and what they found.
struct Counters {
  std::atomic<std::int64_t> launches{0};     // of kernels, copies and GEMMs
  std::atomic<std::int64_t> queries{0};      // calls of `done`
  std::atomic<int> querying{0};              // threads inside `done`
  std::atomic<int> most_querying{0};         // maximum of it
  std::atomic<std::size_t> most_pending{0};  // maximum number of tasks of a stream that had not ended
  std::atomic<int> reserved{0};              // multiprocessors that the latest call reserved
  std::mutex mutex;
  std::set<std::string> kernels;  // that were launched, and shapes of GEMMs; guarded by `mutex`
};

// A device whose kernels run on host threads, one per stream, so that streams are as independent as those of a GPU.
// Slow: for tests. Stream::native returns the Stream itself.
struct EmulatedDeviceSpec {
  std::string name = "emulated device";
  int ordinal = 0;
  int multiprocessors = 4;
  int compute_capability = 80;
  std::int64_t memory_bytes = std::int64_t{1} << 30;
  ExecutionOrder order;
  // Number of tasks that a stream takes before it blocks the host, as the queue of a GPU does.
  std::size_t queue_length = 1024;
  // Whether kernels may access memory of emulated devices of other ordinals; otherwise such a kernel fails.
  bool peer_access = true;
  // The task of the device, counted from 1 over all streams, that fails; 0: none.
  std::int64_t fails_at = 0;
  // May be null; outlive the device.
  Counters* counters = nullptr;
  AttentionLibrary* attention = nullptr;
};
std::unique_ptr<Device> make_device(const EmulatedDeviceSpec& spec);

// Enqueues `task` on a stream of an emulated device. The device's next `done` or `synchronize` throws its exception as
// DeviceError, and so does every later call that may throw.
void put(Stream& stream, std::function<void()> task);
// The same for a kernel of that name, whose arguments may contain addresses.
void launch(Stream& stream, std::function<void()> task, std::span<const std::byte> arguments, const char* name);

// Runs the blocks of a grid sequentially; see run_block.
void run_grid(const std::array<int, 3>& blocks, int threads, int shared_bytes, const std::function<void()>& body);

}  // namespace sluice::kernels::emulation
