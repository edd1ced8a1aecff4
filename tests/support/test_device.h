#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"

namespace sluice::test {

// Returns the device for kernel tests, an emulated device or a GPU, depending on how the program is linked. Returns
// null if there is no GPU; the test is then skipped.
std::unique_ptr<Device> make_test_device();

// Device memory with guard regions on both sides. Initialized with bytes 0xff, which are NaNs, to detect reads of
// uninitialized memory. Operations run on `stream` and synchronize with it. Device and stream must outlive it.
class DeviceMemory {
 public:
  DeviceMemory(Device& device, Stream& stream, std::int64_t bytes);
  DeviceMemory(Device& device, std::int64_t bytes);  // with its own stream
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }
  void fill(std::byte value);
  void write(std::span<const std::byte> bytes);
  std::vector<std::byte> read() const;
  // Returns whether the guard regions are unchanged.
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

// Converts numbers to 16-bit or float32 elements in memory, and back; rounds to nearest.
std::vector<std::byte> as_bytes(Element element, const std::vector<double>& numbers);
std::vector<double> as_numbers(Element element, std::span<const std::byte> bytes);
std::vector<double> rounded(Element element, const std::vector<double>& numbers);

// ||out - reference|| / ||reference||.
double relative_error(const std::vector<double>& out, const std::vector<double>& reference);
// Returns the relative error that a kernel may have: 1e-2 in bf16, 2e-3 in fp16.
double allowed_error(Element element);

}  // namespace sluice::test
