// Tests the emulation of devices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Eigen/Core>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/buffers.h"
#include "kernels/cuda/launch.h"
#include "kernels/device_kernels.h"
#include "kernels/stage.h"
#include "model/errors.h"

namespace sluice::test {
namespace {

using namespace cuda;  // NOLINT(google-build-using-namespace): the language of kernels

class Emulation : public ::testing::Test {
 protected:
  template <class Kernel>
  void run(const Grid& grid, const Kernel& kernel) {
    launch(*stream_, grid, kernel);
    device_->synchronize(*stream_);
  }
  std::unique_ptr<Device> device_ = emulation::make_device({});
  std::unique_ptr<Stream> stream_ = device_->make_stream(StreamPriority::normal);
};

TEST_F(Emulation, ConversionOfAll16BitNumbersEqualsEigen) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float16 half{static_cast<std::uint16_t>(bits)};
    const float expected = static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(static_cast<std::uint16_t>(bits)));
    const float value = to_float(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    EXPECT_EQ(value, expected) << bits;
    EXPECT_EQ(from_float<float16>(value).bits, half.bits) << bits;
  }
}

TEST_F(Emulation, RoundingEqualsEigen) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(value)) continue;
    EXPECT_EQ(from_float<float16>(value).bits, Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(value))) << value;
    EXPECT_EQ(from_float<bfloat16>(value).bits, Eigen::numext::bit_cast<std::uint16_t>(Eigen::bfloat16(value)))
        << value;
  }
}

struct SumOfBlock {
  static constexpr int kThreads = 96;
  const float* in;
  float* out;
  SLUICE_DEVICE void operator()() const {
    auto* const sums = reinterpret_cast<float*>(shared_memory());
    const float sum = warp_sum(in[block_x() * threads() + thread()]);
    if (lane() == 0) sums[warp()] = sum;
    sync_block();
    if (thread() != 0) return;
    float all = 0;
    for (int i = 0; i < threads() / kWarp; ++i) all += sums[i];
    out[block_x()] = all;
  }
};

TEST_F(Emulation, ThreadsOfABlockSynchronize) {
  std::vector<float> in(2 * 96);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
  std::array<float, 2> out{};
  run({.blocks_x = 2, .threads = 96, .shared_bytes = 12}, SumOfBlock{in.data(), out.data()});
  EXPECT_EQ(out[0], 95 * 96 / 2);
  EXPECT_EQ(out[1], 191 * 192 / 2 - 95 * 96 / 2);
}

// Each thread counts the threads of other warps that ran before it.
struct CountWithoutWaiting {
  static constexpr int kThreads = 128;
  int* seen;
  SLUICE_DEVICE void operator()() const {
    auto* const count = reinterpret_cast<int*>(shared_memory());
    if (thread() == 0) *count = 0;
    sync_block();
    sync_warp();
    seen[thread()] = *count;
    if (lane() == 0) ++*count;
    sync_warp();
  }
};

TEST_F(Emulation, RunsWarpsInTheGivenOrder) {
  using emulation::ExecutionOrder;
  std::set<std::vector<int>> orders;
  for (const ExecutionOrder& order :
       {ExecutionOrder{}, ExecutionOrder{ExecutionOrder::Warps::first_ahead},
        ExecutionOrder{ExecutionOrder::Warps::last_ahead}, ExecutionOrder{ExecutionOrder::Warps::random, 1},
        ExecutionOrder{ExecutionOrder::Warps::random, 2}}) {
    const auto device = emulation::make_device({.order = order});
    const auto stream = device->make_stream(StreamPriority::normal);
    std::vector<int> seen(128);
    launch(*stream, {.threads = 128, .shared_bytes = 4}, CountWithoutWaiting{seen.data()});
    device->synchronize(*stream);
    orders.insert(seen);
    if (order.warps == ExecutionOrder::Warps::first_ahead) {
      for (int warp = 0; warp < 4; ++warp) EXPECT_EQ(seen[warp * 32 + 31], warp + 1);
    }
    if (order.warps == ExecutionOrder::Warps::last_ahead) {
      for (int warp = 0; warp < 4; ++warp) EXPECT_EQ(seen[warp * 32 + 31], 3 - warp);
    }
  }
  EXPECT_GE(orders.size(), 3U);
}

struct AddFour {
  static constexpr int kThreads = 32;
  float* to;  // [2][4]
  int from;
  SLUICE_DEVICE void operator()() const {
    const float values[4] = {1, 2, 3, static_cast<float>(lane())};
    atomic_add_4(to + from + lane() % 2 * 4, values);
  }
};

TEST_F(Emulation, AtomicAddOfFourNeedsAlignment) {
  alignas(16) std::array<float, 12> to{};
  run({.threads = 32}, AddFour{to.data(), 0});
  // 16 lanes each; the even ones sum up to 2 (0 + ... + 15), the odd ones to 16 more.
  EXPECT_THAT(to, ::testing::ElementsAre(16, 32, 48, 240, 16, 32, 48, 256, 0, 0, 0, 0));
  EXPECT_THROW(run({.threads = 32}, AddFour{to.data(), 1}), DeviceError);
}

struct SomeNeverArrive {
  static constexpr int kThreads = 64;
  SLUICE_DEVICE void operator()() const {
    if (thread() == 5) return;
    sync_block();
  }
};

TEST_F(Emulation, ReportsADeadlock) { EXPECT_THROW(run({.threads = 64}, SomeNeverArrive{}), DeviceError); }

TEST_F(Emulation, StreamsWaitOnlyForEvents) {
  const auto other = device_->make_stream(StreamPriority::high);
  const auto event = device_->make_event();
  const auto last = device_->make_event();
  std::vector<int> order;
  emulation::put(*stream_, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  emulation::put(*stream_, [&] { order.push_back(1); });
  device_->record(*event, *stream_);
  device_->wait(*other, *event);
  emulation::put(*other, [&] { order.push_back(2); });
  device_->record(*last, *other);
  EXPECT_FALSE(device_->done(*last));
  device_->synchronize(*last);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_GE(device_->nanoseconds_between(*event, *last), 0);
}

TEST_F(Emulation, KernelsFailThatAccessAnotherGpuWithoutPeerAccess) {
  const auto other = emulation::make_device({.ordinal = 1});
  auto* const theirs = reinterpret_cast<std::int32_t*>(other->allocate(64));
  for (const bool access : {true, false}) {
    const auto device = emulation::make_device({.peer_access = access});
    EXPECT_EQ(device->can_access(*other), access);
    const auto stream = device->make_stream(StreamPriority::normal);
    auto* const mine = device->allocate(64);
    device->copy(mine, theirs, 64, *stream);  // copies always work
    flag_not_finite(*stream, Element::float32, mine, 16, reinterpret_cast<std::int32_t*>(mine));
    EXPECT_NO_THROW(device->synchronize(*stream));
    flag_not_finite(*stream, Element::float32, mine, 16, theirs + 8);  // within their block
    if (access) {
      EXPECT_NO_THROW(device->synchronize(*stream));
    } else {
      EXPECT_THROW(device->synchronize(*stream), DeviceError);
      EXPECT_THROW(device->make_current(), DeviceError);  // as every later call
    }
  }
}

TEST_F(Emulation, StreamsBlockTheHostWhenTheirQueueIsFull) {
  emulation::Counters counters;
  const auto device = emulation::make_device({.queue_length = 8, .counters = &counters});
  const auto stream = device->make_stream(StreamPriority::normal);
  std::atomic<bool> go{false};
  std::atomic<int> ran{0};
  std::jthread later([&] {
    while (counters.most_pending < 8) std::this_thread::yield();
    go = true;
  });
  emulation::put(*stream, [&] {
    while (!go) std::this_thread::yield();
  });
  for (int i = 0; i < 20; ++i) emulation::put(*stream, [&] { ++ran; });
  device->synchronize(*stream);
  EXPECT_EQ(ran, 20);
  EXPECT_EQ(counters.most_pending, 8U);
}

// As in CUDA, an event may be destroyed before the streams that record it or wait for it come to that.
TEST_F(Emulation, EventsMayBeDestroyedEarly) {
  const auto device = emulation::make_device({});
  const auto first = device->make_stream(StreamPriority::normal);
  const auto second = device->make_stream(StreamPriority::normal);
  std::atomic<bool> go{false};
  std::atomic<bool> ran{false};
  emulation::put(*first, [&] {
    while (!go) std::this_thread::yield();
  });
  {
    const auto event = device->make_event();
    device->record(*event, *first);
    device->wait(*second, *event);
  }
  emulation::put(*second, [&] { ran = true; });
  go = true;
  device->synchronize(*second);
  EXPECT_TRUE(ran);
}

TEST_F(Emulation, LimitsMemoryToItsSpecification) {
  const auto small = emulation::make_device({.memory_bytes = 1000});
  std::byte* const first = small->allocate(600);
  EXPECT_EQ(small->free_bytes(), 400);
  EXPECT_THROW(small->allocate(401), DoesNotFit);
  small->release(first);
  EXPECT_NO_THROW(small->allocate(1000));
}

TEST_F(Emulation, GradientScaleClipsAndDetectsOverflow) {
  // Squares of gradients at a loss scale of 8: their norm is 40, without the scale 5.
  const float squares = 1600;
  float scale = 0;
  float norm = 0;
  gradient_scale(*stream_, &squares, 0, 8, &scale, &norm);
  device_->synchronize(*stream_);
  EXPECT_EQ(norm, 5);
  EXPECT_EQ(scale, 1.0F / 8);
  gradient_scale(*stream_, &squares, 2.5F, 8, &scale, &norm);
  device_->synchronize(*stream_);
  EXPECT_EQ(scale, 2.5F / 40);
  const float infinite = std::numeric_limits<float>::infinity();
  gradient_scale(*stream_, &infinite, 2.5F, 8, &scale, &norm);
  device_->synchronize(*stream_);
  EXPECT_TRUE(std::isnan(scale));
}

TEST_F(Emulation, FlagsNumbersThatAreNotFinite) {
  std::vector<bfloat16> data(5000, from_float<bfloat16>(1.5F));
  std::int32_t flag = 0;
  flag_not_finite(*stream_, Element::bfloat16, data.data(), 5000, &flag);
  device_->synchronize(*stream_);
  EXPECT_EQ(flag, 0);
  // In a vector, in the remainder, and in a range that is not aligned; numbers beyond the range do not count.
  for (const auto& [begin, count, at] : {std::array{0, 5000, 4096}, {0, 4999, 4998}, {3, 4000, 3}, {3, 4000, 4002}}) {
    flag = 0;
    std::fill(data.begin(), data.end(), from_float<bfloat16>(1.5F));
    fill_not_a_number(*stream_, Element::bfloat16, data.data() + begin + count, 5000 - begin - count);
    flag_not_finite(*stream_, Element::bfloat16, data.data() + begin, count, &flag);
    device_->synchronize(*stream_);
    EXPECT_EQ(flag, 0) << begin << " " << count;
    fill_not_a_number(*stream_, Element::bfloat16, data.data() + at, 1);
    flag_not_finite(*stream_, Element::bfloat16, data.data() + begin, count, &flag);
    device_->synchronize(*stream_);
    EXPECT_EQ(flag, 1) << at;
  }
}

// Runs ops of one GPT layer between two other stages: h = 256 in heads of 64, f = 4 h, n = 128 tokens, one slice.
class LayerWork : public Emulation {
 protected:
  static constexpr std::int64_t kRows = 128;
  static constexpr int kHidden = 256;

  LayerWork() {
    const StageSpec spec{.model = {.name = "GPT layer",
                                   .layers = 3,
                                   .hidden = kHidden,
                                   .heads = 4,
                                   .kv_heads = 4,
                                   .head_dim = 64,
                                   .ffn_hidden = 4 * kHidden,
                                   .vocab = 512,
                                   .positions = 4096},
                         .contents = {.layers = 1},
                         .first_layer = 1};
    stage_ = device_kernels()->make_stage(spec, Precision::bfloat16);
    const SliceShape shape{.tokens = kRows};
    const SliceMemory sizes = stage_->slice_memory(shape);
    call_ = {.shape = shape,
             .weights = device_->allocate(stage_->memory().weights),
             .gradients = device_->allocate(stage_->memory().gradients),
             .scratch = device_->allocate(stage_->scratch_bytes(shape)),
             .to_input_gradient = device_->allocate(sizes.to_input_gradient),
             .to_weight_gradient = device_->allocate(sizes.to_weight_gradient),
             .output_gradients = device_->allocate(sizes.output_gradients),
             .keys_values = device_->allocate(sizes.keys_values),
             .input = device_->allocate(sizes.boundary),
             .output = device_->allocate(sizes.boundary),
             .output_gradient = device_->allocate(sizes.boundary),
             .input_gradient = device_->allocate(sizes.boundary),
             .stream = stream_.get(),
             .device = device_.get(),
             .not_finite = reinterpret_cast<std::int32_t*>(device_->allocate(sizeof(std::int32_t)))};
  }

  // Returns the number of grids of an op, and its bytes in units of one [n, h] tensor of 16 bits.
  template <class Op>
  std::pair<std::int64_t, double> work_of(const Op& op) {
    const emulation::KernelWork before = emulation::kernel_work();
    op(*stage_, call_);
    device_->synchronize(*stream_);
    const emulation::KernelWork after = emulation::kernel_work();
    return {after.grids - before.grids,
            static_cast<double>(after.bytes - before.bytes) / static_cast<double>(2 * kRows * kHidden)};
  }

  std::unique_ptr<Stage> stage_;
  SliceCall call_;
};

// Expected numbers are sums over the kernels, in their order. Every kernel reads and writes a tensor once, except that
// norms read rows that they hold in cache: three times forward, twice backward. Biases and gains are read per row.
// Scalar accesses are not counted: statistics, log sums and scores.
TEST_F(LayerWork, EqualsTheSumOverKernels) {
  // Norm that keeps its input: 5 + 2; split with bias: 6 + 3; softmax of scores; residual and norm: 6 + 3; GELU: 8 + 4;
  // residual: 3 + 1.
  const auto forward = work_of([](const Stage& stage, SliceCall& call) { stage.forward(call); });
  EXPECT_EQ(forward, std::make_pair(std::int64_t{6}, 41.0));
  // Column sums of four biases: 1 + 4 + 1 + 3; GELU: 12 + 4; two norms, of which each has column sums: 2 (2 + 8); row
  // products: 2; gradients of scores; rounding those of keys and values, in float32: 4 + 2.
  const auto backward = work_of([](const Stage& stage, SliceCall& call) { stage.backward(call); });
  EXPECT_EQ(backward, std::make_pair(std::int64_t{12}, 53.0));
  // The gradient of the output is also kept until W: 2.
  const auto input = work_of([](const Stage& stage, SliceCall& call) { stage.input_gradient(call); });
  EXPECT_EQ(input, std::make_pair(std::int64_t{13}, 55.0));
}

// Keys and values of all slices are contiguous: the number of launches does not depend on the number of earlier slices.
TEST_F(Emulation, LaunchesOfALayerDoNotDependOnEarlierSlices) {
  constexpr std::int64_t kTokens = 16;
  for (const int head_dim : {64, 32}) {
    std::vector<std::array<std::int64_t, 2>> launches;  // of F and of B
    for (const std::int64_t slices : {1, 2, 8}) {
      emulation::Counters counters;
      const std::unique_ptr<Device> device = emulation::make_device({.counters = &counters});
      const std::unique_ptr<Stream> stream = device->make_stream(StreamPriority::normal);
      const StageSpec spec{.model = {.name = "GPT layer",
                                     .layers = 3,
                                     .hidden = 128,
                                     .heads = 128 / head_dim,
                                     .kv_heads = 128 / head_dim,
                                     .head_dim = head_dim,
                                     .ffn_hidden = 128,
                                     .vocab = 512,
                                     .positions = 4096},
                           .contents = {.layers = 1},
                           .first_layer = 1,
                           .sliced = true};
      const std::unique_ptr<Stage> stage = device_kernels()->make_stage(spec, Precision::bfloat16);
      const SliceShape shape{.tokens = kTokens, .context = (slices - 1) * kTokens};
      const SliceMemory sizes = stage->slice_memory(shape);
      const SliceMemory all = stage->slice_memory({.tokens = slices * kTokens});
      SliceCall call{.shape = shape,
                     .weights = device->allocate(stage->memory().weights),
                     .gradients = device->allocate(stage->memory().gradients),
                     .scratch = device->allocate(stage->scratch_bytes(shape)),
                     .to_input_gradient = device->allocate(sizes.to_input_gradient),
                     .to_weight_gradient = device->allocate(sizes.to_weight_gradient),
                     .keys_values = device->allocate(all.keys_values),
                     .keys_values_gradient = device->allocate(all.keys_values_gradient),
                     .sequence_tokens = slices * kTokens,
                     .input = device->allocate(sizes.boundary),
                     .output = device->allocate(sizes.boundary),
                     .output_gradient = device->allocate(sizes.boundary),
                     .input_gradient = device->allocate(sizes.boundary),
                     .stream = stream.get(),
                     .device = device.get()};
      stage->forward(call);
      const std::int64_t forward = counters.launches;
      stage->backward(call);
      launches.push_back({forward, counters.launches - forward});
      device->synchronize(*stream);
    }
    EXPECT_EQ(launches[1], launches[0]) << "heads of " << head_dim;
    EXPECT_EQ(launches[2], launches[0]) << "heads of " << head_dim;
  }
}

}  // namespace
}  // namespace sluice::test
