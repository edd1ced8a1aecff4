#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/elementwise.h"
#include "tests/support/test_device.h"

namespace sluice::test {

// Fixture of tests of kernels on a device, with one 16-bit type.
class DeviceKernels : public ::testing::TestWithParam<Element> {
 protected:
  void SetUp() override {
    device_ = make_test_device();
    if (device_ == nullptr) GTEST_SKIP() << "SKIPPED: no GPU";
    device_->make_current();
    if (GetParam() == Element::bfloat16 && !device_->has_bfloat16()) GTEST_SKIP() << "SKIPPED: no bfloat16";
    stream_ = device_->make_stream(StreamPriority::normal);
  }
  void TearDown() override {
    for (const auto& memory : memories_) EXPECT_TRUE(memory->intact()) << "a kernel has written outside of a buffer";
    memories_.clear();
  }

  static Element element() { return GetParam(); }
  static double allowed() { return allowed_error(GetParam()); }

  // Returns normally distributed numbers, rounded to the element type.
  std::vector<double> random(std::int64_t count, double deviation = 1, double mean = 0) {
    return random_of(element(), count, deviation, mean);
  }
  std::vector<double> random_of(Element type, std::int64_t count, double deviation = 1, double mean = 0) {
    std::normal_distribution<double> normal(mean, deviation);
    std::vector<double> out(static_cast<std::size_t>(count));
    for (double& number : out) number = normal(engine_);
    return rounded(type, out);
  }

  DeviceMemory& memory(std::int64_t bytes) {
    memories_.push_back(std::make_unique<DeviceMemory>(*device_, *stream_, bytes));
    return *memories_.back();
  }
  // Allocate 16-bit or float32 buffers, with the given numbers or filled with NaN.
  cuda::Half* halves(const std::vector<double>& numbers) {
    return reinterpret_cast<cuda::Half*>(written(element(), numbers));
  }
  float* floats(const std::vector<double>& numbers) {
    return reinterpret_cast<float*>(written(Element::float32, numbers));
  }
  cuda::Half* halves(std::int64_t count) { return reinterpret_cast<cuda::Half*>(memory(2 * count).data()); }
  float* floats(std::int64_t count) { return reinterpret_cast<float*>(memory(4 * count).data()); }
  std::int32_t* integers(const std::vector<std::int32_t>& numbers) {
    DeviceMemory& to = memory(static_cast<std::int64_t>(4 * numbers.size()));
    to.write(std::as_bytes(std::span(numbers)));
    return reinterpret_cast<std::int32_t*>(to.data());
  }

  // Returns a number of `integers` after all work of the stream.
  std::int32_t flag_at(const std::int32_t* place) {
    device_->synchronize(*stream_);
    for (const auto& memory : memories_) {
      if (static_cast<const void*>(memory->data()) != place) continue;
      std::int32_t flag = 0;
      std::memcpy(&flag, memory->read().data(), sizeof flag);
      return flag;
    }
    throw std::logic_error("not a buffer of this test");
  }

  // Returns the contents of a buffer from `halves` or `floats` after all work of the stream.
  std::vector<double> read(const cuda::Half* place) { return read_as(element(), place); }
  std::vector<double> read(const float* place) { return read_as(Element::float32, place); }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::mt19937_64 engine_{5};

 private:
  std::byte* written(Element type, const std::vector<double>& numbers) {
    const std::vector<std::byte> bytes = as_bytes(type, numbers);
    DeviceMemory& to = memory(static_cast<std::int64_t>(bytes.size()));
    to.write(bytes);
    return to.data();
  }
  std::vector<double> read_as(Element type, const void* place) {
    device_->synchronize(*stream_);
    for (const auto& memory : memories_) {
      if (memory->data() == place) return as_numbers(type, memory->read());
    }
    throw std::logic_error("not a buffer of this test");
  }

  std::vector<std::unique_ptr<DeviceMemory>> memories_;
};

}  // namespace sluice::test
