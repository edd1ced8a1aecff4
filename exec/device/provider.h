#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace sluice::exec {

// What the ranks of a process are to run on.
struct DeviceRequest {
  enum Kind : std::uint8_t {
    gpu,     // whole GPUs
    green,   // disjoint sets of multiprocessors of one GPU (green contexts): truly side by side
    stream,  // one GPU, its streams alone: correct, not side by side
  };
  Kind kind = gpu;
  int count = 0;  // 0: as many GPUs as there are
};

// "gpu", "gpu:2", "green:4", "stream:4". Throws InputError for anything else.
DeviceRequest parse_devices(const std::string& text);
std::string to_string(const DeviceRequest& request);

// What is known of one GPU before anything runs on it.
struct DeviceFacts {
  std::string name;
  int ordinal = 0;
  int multiprocessors = 0;
  int compute_capability = 0;  // 90 of sm_90
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;
  double clock_hz = 0;         // of its multiprocessors, at most; 0: not told
  double memory_clock_hz = 0;  // likewise
  std::string bus;             // "0000:3b:00.0"; empty: none
  bool bfloat16 = false;
  int most_partitions = 0;        // green contexts of the least size that fit; 0: none
  std::string why_no_partitions;  // one line, where none
};

// A library or driver that devices need, or would be better with.
struct SoftwareFacts {
  std::string name;     // "driver", "CUDA runtime", "cuBLAS", "NCCL"
  std::string version;  // "13.0"; empty: not found
  std::string detail;   // where it was found, or why not
};

// Opens devices of one kind of machine. Thread-safe.
class DeviceProvider {
 public:
  virtual ~DeviceProvider() = default;

  virtual std::string name() const = 0;  // "cuda", "emulation"
  // Whole GPUs: the first `count` of `ordinals` (every one of them if 0), or of all that are visible if it is empty.
  // Partitions and streams: `count` of the first of `ordinals`, or of GPU 0. What is opened together shares nothing but
  // memory and may be used by one thread each. Throws InputError if there are fewer, or the GPU cannot be cut so;
  // DeviceError.
  virtual std::vector<std::unique_ptr<Device>> open(const DeviceRequest& request,
                                                    std::span<const int> ordinals = {}) const = 0;

  // The GPUs that this process sees; and what is known of them, by ordinal, which wakes each of them and takes a while.
  // None, not an error, for want of a driver.
  virtual int num_devices() const = 0;
  virtual std::vector<DeviceFacts> devices() const = 0;
  virtual std::vector<SoftwareFacts> software() const = 0;
  virtual std::string architectures() const = 0;  // that kernels are built for: "sm_75 sm_80 sm_90"
  // One line; empty if there are devices.
  virtual std::string why_none() const = 0;
};

// The one of this build; null where it has none. A program links one of sluice::cuda_devices, sluice::emulated_devices
// and sluice::no_devices.
const DeviceProvider* device_provider();

// Why nothing can be opened, in one line: built without CUDA, no driver, one too old, no device visible. Empty if
// something can.
std::string why_no_devices();

// Throws InputError, in terms of what to ask for instead, if the device has no products of bfloat16 in hardware.
void require_bfloat16(const Device& device);

// The GPU of a process that is the `local_rank`th on its host, of `visible`: launchers may show each process its own
// GPU alone, or all of them to all.
int ordinal_of(int local_rank, int visible);

}  // namespace sluice::exec
