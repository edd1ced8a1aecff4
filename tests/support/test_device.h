#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"

namespace sluice::test {

// A device that kernels are tested on: one of the emulation, or a GPU, as the program is linked. Null where there is no
// GPU: the test is then skipped.
std::unique_ptr<Device> make_test_device();

// Memory of a device between guards. Begins as bytes 0xff, which are not numbers, so that whoever reads what nobody
// wrote is found out. Calls go through `stream` and wait for it. Device and stream outlive it.
class DeviceMemory {
 public:
  DeviceMemory(Device& device, Stream& stream, std::int64_t bytes);
  DeviceMemory(Device& device, std::int64_t bytes);  // with a stream of its own
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }
  void fill(std::byte value);
  void write(std::span<const std::byte> bytes);
  std::vector<std::byte> read() const;
  // Nobody has written outside.
  bool intact() const;

 private:
  void begin();
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) const;
  Device& device_;
  std::unique_ptr<Stream> own_stream_;
  Stream& stream_;
  std::byte* memory_;
  std::byte* host_;
  std::byte* data_;
  std::int64_t size_;
};

// 16-bit or float32 numbers as they lie in memory, and back; to the nearest.
std::vector<std::byte> as_bytes(Element element, const std::vector<double>& numbers);
std::vector<double> as_numbers(Element element, std::span<const std::byte> bytes);
std::vector<double> rounded(Element element, const std::vector<double>& numbers);

// ||out - reference|| / ||reference||.
double relative_error(const std::vector<double>& out, const std::vector<double>& reference);
// What that may be, of one kernel: 1e-2 in bf16, 2e-3 in fp16.
double allowed_error(Element element);

}  // namespace sluice::test
