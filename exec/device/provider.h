#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace sluice::exec {

// The devices that the ranks of a process run on.
struct DeviceRequest {
  enum Kind : std::uint8_t {
    gpu,     // whole GPUs
    green,   // disjoint sets of multiprocessors of one GPU (green contexts), which run concurrently
    stream,  // streams of one GPU, which compete for it
  };
  Kind kind = gpu;
  int count = 0;  // 0: all visible GPUs
};

// Parses "gpu", "gpu:2", "green:4", "stream:4". Throws InputError for anything else.
DeviceRequest parse_devices(const std::string& text);
std::string to_string(const DeviceRequest& request);

// Properties of one GPU.
struct DeviceFacts {
  std::string name;
  int ordinal = 0;
  int multiprocessors = 0;
  int compute_capability = 0;  // 90 of sm_90
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;
  double clock_hz = 0;         // maximum clock of its multiprocessors; 0: unknown
  double memory_clock_hz = 0;  // 0: unknown
  std::string bus;             // "0000:3b:00.0", or empty
  bool bfloat16 = false;
  int most_partitions = 0;        // number of green contexts of minimum size; 0: none
  std::string why_no_partitions;  // one line, if none
};

// A library or driver that devices need or benefit from.
struct SoftwareFacts {
  std::string name;     // "driver", "CUDA runtime", "cuBLAS", "cuDNN", "NCCL"
  std::string version;  // "13.0"; empty: not found
  std::string detail;   // where it was found, or why not
};

// Opens devices of one platform. Thread-safe.
class DeviceProvider {
 public:
  virtual ~DeviceProvider() = default;

  virtual std::string name() const = 0;  // "cuda", "emulation"
  // Opens whole GPUs: the first `count` of `ordinals` (all of them if 0), or of all visible ones if it is empty.
  // Partitions and streams: `count` of the first of `ordinals`, or of GPU 0. Devices opened together share only memory,
  // and each may be used by one thread. Throws InputError if there are too few, or if the GPU cannot be partitioned so;
  // DeviceError.
  virtual std::vector<std::unique_ptr<Device>> open(const DeviceRequest& request,
                                                    std::span<const int> ordinals = {}) const = 0;

  // The GPUs visible to this process, and their properties by ordinal, which initialises each of them and takes a
  // while. Without a driver there are none, which is not an error.
  virtual int num_devices() const = 0;
  virtual std::vector<DeviceFacts> devices() const = 0;
  virtual std::vector<SoftwareFacts> software() const = 0;
  virtual std::string architectures() const = 0;  // of the compiled kernels: "sm_75 sm_80 sm_90"
  // Returns one line, or an empty string if there are devices.
  virtual std::string why_none() const = 0;
};

// Returns the provider of this build, or null without one. A program links one of sluice::cuda_devices,
// sluice::emulated_devices and sluice::no_devices.
const DeviceProvider* device_provider();

// Returns in one line why no device can be opened: built without CUDA, no driver, driver too old, no visible device.
// Empty if one can.
std::string why_no_devices();

// Throws InputError, with an alternative, if the device has no bfloat16 GEMM in hardware.
void require_bfloat16(const Device& device);

// Returns the GPU of the process with rank `local_rank` on its host, of `visible` ones: launchers may show each process
// only its own GPU, or all of them.
int ordinal_of(int local_rank, int visible);

// Copy bandwidth from one memory to another, measured with a few copies of 64 MiB, and the time of a copy of a few
// bytes.
struct CopyRate {
  std::string from;  // "host", "GPU 0"
  std::string to;
  double bytes_per_s = 0;
  double seconds = 0;
};

// Measures between the host (pinned memory) and each device, and between each two devices. Throws DeviceError.
std::vector<CopyRate> measured_copies(std::span<const std::unique_ptr<Device>> devices);

}  // namespace sluice::exec
