// The contract of Device on a GPU. Skipped, with a message, where there is none.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "exec/device/provider.h"
#include "kernels/cuda/launch.h"
#include "model/errors.h"

namespace sluice::test {
namespace {

// Marks the multiprocessor that a block runs on, and occupies it for a while, so that the other blocks use others.
struct MarkMultiprocessor {
  static constexpr int kThreads = 32;
  std::int32_t* marks;
  long long clocks;
  SLUICE_DEVICE void operator()() const {
    std::uint32_t multiprocessor = 0;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    if (cuda::thread() == 0) cuda::atomic_or(&marks[multiprocessor], 1);
    const long long began = clock64();
    while (clock64() - began < clocks) {
    }
  }
};

// Ends the kernel with an error, after which every call of the process fails.
struct Trap {
  static constexpr int kThreads = 32;
  SLUICE_DEVICE void operator()() const { asm volatile("trap;"); }
};

constexpr int kMostMultiprocessors = 1024;
constexpr long long kMillisecond = 1'500'000;  // clock cycles, approximately

class GpuDevice : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string why = why_no_devices();
    if (!why.empty()) {
      std::cerr << "SKIPPED, UNPROVEN: " << why << "\n";
      GTEST_SKIP() << why;
    }
    devices_ = device_provider()->open(parse_devices(GetParam()));
    for (const auto& device : devices_) std::cerr << device->name() << "\n";
  }
  std::vector<std::unique_ptr<Device>> devices_;
};

std::set<int> multiprocessors_of(Device& device) {
  device.make_current();
  auto* const marks = reinterpret_cast<std::int32_t*>(device.allocate(kMostMultiprocessors * 4));
  auto* const seen = reinterpret_cast<std::int32_t*>(device.allocate_host(kMostMultiprocessors * 4));
  const auto stream = device.make_stream(StreamPriority::normal);
  cuda::launch(*stream, {.blocks_x = 64 * device.multiprocessors(), .threads = 32},
               MarkMultiprocessor{marks, kMillisecond / 100});
  device.copy(seen, marks, kMostMultiprocessors * 4, *stream);
  device.synchronize(*stream);
  std::set<int> out;
  for (int i = 0; i < kMostMultiprocessors; ++i) {
    if (seen[i] != 0) out.insert(i);
  }
  device.release(reinterpret_cast<std::byte*>(marks));
  device.release_host(reinterpret_cast<std::byte*>(seen));
  return out;
}

TEST_P(GpuDevice, HasTheReportedMultiprocessors) {
  std::set<int> of_others;
  const bool shares = parse_devices(GetParam()).kind != DeviceRequest::green;
  for (const auto& device : devices_) {
    const std::set<int> mine = multiprocessors_of(*device);
    EXPECT_EQ(static_cast<int>(mine.size()), device->multiprocessors()) << device->name();
    for (const int each : mine) {
      EXPECT_TRUE(shares || of_others.insert(each).second) << device->name() << " runs on " << each;
    }
  }
}

// Kernels of two partitions that run concurrently take as long as one of them; on one stream, as long as both.
TEST_P(GpuDevice, PartitionsRunConcurrently) {
  if (devices_.size() < 2) GTEST_SKIP() << "one device";
  const bool green = parse_devices(GetParam()).kind == DeviceRequest::green;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> ends;
  std::vector<std::int32_t*> marks;
  for (const auto& device : devices_) {
    streams.push_back(device->make_stream(StreamPriority::normal));
    ends.push_back(device->make_event());
    marks.push_back(reinterpret_cast<std::int32_t*>(device->allocate(kMostMultiprocessors * 4)));
  }
  const auto begin = devices_[0]->make_event();
  std::int64_t alone = 0;
  for (const bool together : {false, false, true}) {  // the first loads the kernel
    for (const auto& stream : streams) devices_[0]->synchronize(*stream);
    devices_[0]->record(*begin, *streams[0]);
    for (std::size_t i = 0; i < (together ? devices_.size() : 1); ++i) {
      devices_[i]->make_current();
      devices_[i]->wait(*streams[i], *begin);
      cuda::launch(*streams[i], {.blocks_x = devices_[i]->multiprocessors(), .threads = 32},
                   MarkMultiprocessor{marks[i], 20 * kMillisecond});
      devices_[i]->record(*ends[i], *streams[i]);
    }
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < (together ? devices_.size() : 1); ++i) {
      devices_[i]->synchronize(*ends[i]);
      longest = std::max(longest, devices_[i]->nanoseconds_between(*begin, *ends[i]));
    }
    if (!together) alone = longest;
    if (together && green) {
      EXPECT_LT(static_cast<double>(longest), 1.3 * static_cast<double>(alone));
    }
  }
  for (std::size_t i = 0; i < devices_.size(); ++i) devices_[i]->release(reinterpret_cast<std::byte*>(marks[i]));
}

TEST_P(GpuDevice, EventsOrderStreamsOfAllDevices) {
  Device& first = *devices_.front();
  Device& last = *devices_.back();
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  std::byte* const from = first.allocate(kBytes);
  std::byte* const to = last.allocate(kBytes);
  std::byte* const host = last.allocate_host(kBytes);
  std::fill(host, host + kBytes, std::byte{7});
  const auto stream = first.make_stream(StreamPriority::high);
  const auto other = last.make_stream(StreamPriority::normal);
  const auto begun = first.make_event();
  const auto written = first.make_event();
  const auto read = last.make_event();
  EXPECT_TRUE(last.done(*read));  // never recorded
  first.make_current();
  first.record(*begun, *stream);
  first.copy(from, host, kBytes, *stream);
  first.record(*written, *stream);
  last.make_current();
  last.wait(*other, *written);
  last.copy(to, from, kBytes, *other);
  last.record(*read, *other);
  last.synchronize(*read);
  EXPECT_TRUE(first.done(*written));
  if (first.ordinal() == last.ordinal()) {
    EXPECT_GT(last.nanoseconds_between(*begun, *written), 0);
    EXPECT_GT(last.nanoseconds_between(*written, *read), 0);
    EXPECT_LT(last.nanoseconds_between(*read, *begun), 0);
  }
  std::fill(host, host + kBytes, std::byte{0});
  last.copy(host, to, kBytes, *other);
  last.synchronize(*other);
  EXPECT_EQ(std::count(host, host + kBytes, std::byte{7}), kBytes);
  last.zero(to, kBytes, *other);
  last.copy(host, to, kBytes, *other);
  last.synchronize(*other);
  EXPECT_EQ(std::count(host, host + kBytes, std::byte{0}), kBytes);
  first.release(from);
  last.release(to);
  last.release_host(host);
}

// The error of `got` relative to 2 op(A) op(B) + 0.5 C in double precision.
double relative_error(const GemmCall& product, const std::vector<double>& a, const std::vector<double>& b,
                      const std::vector<double>& c, const float* got) {
  double wrong = 0;
  double all = 0;
  for (std::int64_t m = 0; m < product.batch; ++m) {
    for (std::int64_t row = 0; row < product.rows; ++row) {
      for (std::int64_t column = 0; column < product.columns; ++column) {
        double sum = 0;
        for (std::int64_t l = 0; l < product.inner; ++l) {
          const std::int64_t in_a = product.a_transposed ? l * product.rows + row : row * product.inner + l;
          const std::int64_t in_b = product.b_transposed ? column * product.inner + l : l * product.columns + column;
          sum += a[m * product.a_step + in_a] * b[m * product.b_step + in_b];
        }
        const auto at = static_cast<std::size_t>(m * product.c_step + row * product.columns + column);
        const double expected = 2 * sum + 0.5 * c[at];
        wrong += (static_cast<double>(got[at]) - expected) * (static_cast<double>(got[at]) - expected);
        all += expected * expected;
      }
    }
  }
  return std::sqrt(wrong / all);
}

TEST_P(GpuDevice, GemmMatchesDoublePrecision) {
  std::mt19937 random(std::random_device{}());
  std::uniform_real_distribution<float> between(-1.0F, 1.0F);
  constexpr std::int64_t kRows = 96;
  constexpr std::int64_t kColumns = 160;
  constexpr std::int64_t kInner = 224;
  constexpr std::int64_t kBatch = 3;
  for (const auto& device : devices_) {
    device->make_current();
    const auto stream = device->make_stream(StreamPriority::normal);
    const auto other = device->make_stream(StreamPriority::normal);
    auto* const a = device->allocate_host(2 * kRows * kInner * kBatch);
    auto* const b = device->allocate_host(2 * kColumns * kInner * kBatch);
    auto* const c = device->allocate_host(4 * kRows * kColumns * kBatch);
    auto* const da = device->allocate(2 * kRows * kInner * kBatch);
    auto* const db = device->allocate(2 * kColumns * kInner * kBatch);
    auto* const dc = device->allocate(4 * kRows * kColumns * kBatch);
    for (int variant = 0; variant < 16; ++variant) {
      GemmCall product{.rows = kRows, .columns = kColumns, .inner = kInner, .a = da, .b = db, .c = dc};
      product.a_transposed = (variant & 1) != 0;
      product.b_transposed = (variant & 2) != 0;
      product.batch = (variant & 4) != 0 ? kBatch : 1;
      product.in = (variant & 8) != 0 && device->has_bfloat16() ? Element::bfloat16 : Element::float16;
      product.out = Element::float32;
      product.beta = 0.5F;
      product.alpha = 2;
      product.a_stride = product.a_transposed ? kRows : kInner;
      product.b_stride = product.b_transposed ? kInner : kColumns;
      product.c_stride = kColumns;
      product.a_step = kRows * kInner;
      product.b_step = kColumns * kInner;
      product.c_step = kRows * kColumns;
      std::vector<double> va(static_cast<std::size_t>(kRows * kInner * product.batch));
      std::vector<double> vb(static_cast<std::size_t>(kColumns * kInner * product.batch));
      std::vector<double> vc(static_cast<std::size_t>(kRows * kColumns * product.batch));
      const auto fill = [&](std::vector<double>& values, std::byte* memory) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (product.in == Element::bfloat16) {
            const __nv_bfloat16 value = __float2bfloat16(between(random));
            reinterpret_cast<__nv_bfloat16*>(memory)[i] = value;
            values[i] = static_cast<double>(__bfloat162float(value));
          } else {
            const __half value = __float2half(between(random));
            reinterpret_cast<__half*>(memory)[i] = value;
            values[i] = static_cast<double>(__half2float(value));
          }
        }
      };
      fill(va, a);
      fill(vb, b);
      for (std::size_t i = 0; i < vc.size(); ++i) {
        reinterpret_cast<float*>(c)[i] = between(random);
        vc[i] = static_cast<double>(reinterpret_cast<float*>(c)[i]);
      }
      // GEMMs on alternating streams share one workspace.
      Stream& on = variant % 2 == 0 ? *stream : *other;
      device->copy(da, a, 2 * static_cast<std::int64_t>(va.size()), on);
      device->copy(db, b, 2 * static_cast<std::int64_t>(vb.size()), on);
      device->copy(dc, c, 4 * static_cast<std::int64_t>(vc.size()), on);
      device->multiply(product, on);
      device->copy(c, dc, 4 * static_cast<std::int64_t>(vc.size()), on);
      device->synchronize(on);
      // The inputs are exact: the error is float32 rounding of 224 terms.
      EXPECT_LT(relative_error(product, va, vb, vc, reinterpret_cast<const float*>(c)), 1e-5)
          << device->name() << ", variant " << variant;
    }
    for (std::byte* const memory : {da, db, dc}) device->release(memory);
    for (std::byte* const memory : {a, b, c}) device->release_host(memory);
  }
}

TEST_P(GpuDevice, ThrowsIfMemoryDoesNotFit) {
  Device& device = *devices_.front();
  EXPECT_GT(device.free_bytes(), 0);
  EXPECT_THROW(device.allocate(std::int64_t{1} << 50), DoesNotFit);
  device.release(device.allocate(1 << 20));  // still usable
}

// Exits with the number of calls that threw DeviceError after a kernel failed, once all objects are destroyed.
[[noreturn]] void fail_and_destroy(std::vector<std::unique_ptr<Device>>& devices) {
  int thrown = 0;
  {
    Device& device = *devices.front();
    device.make_current();
    std::byte* const memory = device.allocate(1 << 20);
    std::byte* const host = device.allocate_host(1 << 20);
    const auto stream = device.make_stream(StreamPriority::normal);
    const auto event = device.make_event();
    const auto count_errors = [&thrown](const auto& call) {
      try {
        call();
      } catch (const DeviceError& error) {
        std::cerr << error.what() << "\n";
        ++thrown;
      }
    };
    cuda::launch(*stream, {.blocks_x = 1, .threads = Trap::kThreads}, Trap{});
    device.record(*event, *stream);
    count_errors([&] { device.synchronize(*stream); });
    count_errors([&] { device.synchronize(*event); });
    device.settle(*stream);
    device.release(memory);
    device.release_host(host);
  }
  devices.clear();
  std::exit(thrown);
}

using GpuDeviceDeathTest = GpuDevice;

TEST_P(GpuDeviceDeathTest, FailedKernelsAreErrorsAndDestructorsIgnoreThem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // CUDA does not survive a fork
  EXPECT_EXIT(fail_and_destroy(devices_), ::testing::ExitedWithCode(2),
              "cudaStreamSynchronize on .*: .* \\(cudaError[A-Za-z]+\\)");
}

std::string name_of(const ::testing::TestParamInfo<std::string>& tested) {
  std::string name = tested.param;
  name[name.find(':')] = '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, GpuDevice, ::testing::Values("gpu:1", "green:2", "green:4", "green:8", "stream:2"),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, GpuDeviceDeathTest, ::testing::Values("gpu:1", "green:2"), name_of);

}  // namespace
}  // namespace sluice::test
