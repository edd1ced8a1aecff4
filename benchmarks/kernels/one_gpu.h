#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device.h"

namespace sluice::bench {

// The one GPU of this process.
struct Gpu {
  std::unique_ptr<Device> device;
  double peak = 0;  // best measured FLOP/s of an 8192 x 8192 x 8192 bfloat16 GEMM
};
// Opens and measures the GPU at the first call. Precondition: why_no_devices() is empty.
const Gpu& gpu();

// Owns memory of a device, which must outlive it.
class Memory {
 public:
  explicit Memory(Device& device) : device_(device), stream_(device.make_stream(StreamPriority::normal)) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* room(std::int64_t bytes);  // zeroed
  // `count` normally distributed bfloat16 values, which repeat after 65521, a prime, so that rows differ.
  std::byte* numbers(std::int64_t count, std::uint32_t seed, float deviation = 1);
  void write_numbers(std::byte* to, std::int64_t count, std::uint32_t seed, float deviation, float mean = 0);
  std::vector<float> read(const void* from, std::int64_t count, Element element) const;

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::byte*> held_;
};

// ||out - reference|| / ||reference||; NaN if any value is NaN.
double relative_error(const std::vector<float>& out, const std::vector<float>& reference);

// Times the work that `run` enqueues on a stream, in seconds, with events before and after it.
template <class Run>
double seconds(Device& device, Stream& stream, const Run& run) {
  const auto first = device.make_event();
  const auto last = device.make_event();
  device.record(*first, stream);
  run();
  device.record(*last, stream);
  device.synchronize(*last);
  return static_cast<double>(device.nanoseconds_between(*first, *last)) * 1e-9;
}

}  // namespace sluice::bench
