// Flash attention of a slice with its context on one GPU, compared with attention by GEMMs: their rates as fractions of
// that of a large bfloat16 GEMM. Prints a message if there is no GPU.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/kernels/gpu_main.h"
#include "benchmarks/kernels/one_gpu.h"
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/gemm_attention.h"

namespace sluice::bench {
namespace {

constexpr int kHeads = 32;
constexpr int kHeadDim = 128;
constexpr Element kElement = Element::bfloat16;

// The last slice of one sequence, and both directions.
class Slice {
 public:
  Slice(Device& device, std::int64_t tokens, std::int64_t context, std::int64_t kv_heads)
      : device_(device),
        memory_(device),
        stream_(device.make_stream(StreamPriority::normal)),
        shape_{.sequences = 1,
               .tokens = static_cast<int>(tokens),
               .heads = kHeads,
               .kv_heads = static_cast<int>(kv_heads),
               .head_dim = kHeadDim,
               .context = context} {
    keys_ = {.tokens = context + tokens,
             .keys = memory_.numbers(key_elements(), 10),
             .keys_gradient = reinterpret_cast<float*>(memory_.room(key_elements() * 4))};
    const std::int64_t elements = shape_.rows() * shape_.query_width();
    const std::int64_t scratch =
        std::max(cuda::flash_scratch_bytes(shape_), cuda::gemm_attention_scratch_bytes(shape_));
    forward_ = {.shape = shape_,
                .element = kElement,
                .queries = memory_.numbers(elements, 3),
                .keys = keys_,
                .out = memory_.room(elements * 2),
                .log_sums = reinterpret_cast<float*>(memory_.room(shape_.rows() * kHeads * 4)),
                .scratch = memory_.room(scratch)};
    auto* const products = reinterpret_cast<float*>(memory_.room(shape_.rows() * kHeads * 4));
    backward_ = {.shape = shape_,
                 .element = kElement,
                 .queries = forward_.queries,
                 .keys = keys_,
                 .log_sums = forward_.log_sums,
                 .out_gradient = memory_.numbers(elements, 4),
                 .dot_products = products,
                 .queries_gradient = memory_.room(elements * 2),
                 .queries_gradient_stride = shape_.query_width(),
                 .scratch = forward_.scratch};
    run(false, true);
    cuda::row_dot_products(shape_, kElement, forward_.out, backward_.out_gradient, products, *stream_);
    device.synchronize(*stream_);
  }

  void run(bool backward, bool by_products) {
    if (by_products) {
      backward ? cuda::gemm_attention_backward(backward_, device_, *stream_)
               : cuda::gemm_attention_forward(forward_, device_, *stream_);
    } else {
      backward ? cuda::flash_attention_backward(backward_, device_, *stream_)
               : cuda::flash_attention_forward(forward_, device_, *stream_);
    }
  }
  double time(bool backward, bool by_products) {
    return bench::seconds(device_, *stream_, [&] { run(backward, by_products); });
  }

  // Relative error of flash attention against attention by GEMMs.
  double error(bool backward) {
    std::vector<std::vector<float>> results[2];
    for (const bool by_products : {false, true}) {
      device_.zero(keys_.keys_gradient, key_elements() * 4, *stream_);
      run(backward, by_products);
      device_.synchronize(*stream_);
      const void* const rows = backward ? backward_.queries_gradient : forward_.out;
      auto& of = results[by_products ? 1 : 0];
      of.push_back(memory_.read(rows, shape_.rows() * shape_.query_width(), kElement));
      if (backward) of.push_back(memory_.read(keys_.keys_gradient, key_elements(), Element::float32));
    }
    double most = 0;
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      const double error = bench::relative_error(results[0][i], results[1][i]);
      most = error <= most ? most : error;  // also for NaN
    }
    return most;
  }

  // FLOPs of causal attention: two products of every query with its visible keys, five in the backward.
  double flops(bool backward) const {
    const auto tokens = static_cast<double>(shape_.tokens);
    const double pairs = tokens * static_cast<double>(shape_.context) + tokens * (tokens + 1) / 2;
    return (backward ? 5 : 2) * 2.0 * kHeadDim * kHeads * pairs;
  }

 private:
  std::int64_t key_elements() const { return 2 * (shape_.context + shape_.tokens) * shape_.key_width(); }

  Device& device_;
  bench::Memory memory_;
  std::unique_ptr<Stream> stream_;
  AttentionSizes shape_;
  cuda::KeyRows keys_;
  cuda::AttentionForward forward_;
  cuda::AttentionBackward backward_;
};

// tokens, context, key heads, backward (0 or 1), by GEMMs (0 or 1).
void attention(benchmark::State& state) {
  const bool backward = state.range(3) != 0;
  const bool by_products = state.range(4) != 0;
  Device& device = *bench::gpu().device;
  const AttentionSizes shape{.heads = 1, .kv_heads = 1, .head_dim = kHeadDim};
  if (!cuda::flash_fits(shape, device.compute_capability())) {
    state.SkipWithError((device.name() + " is older than sm_80").c_str());
    return;
  }
  Slice slice(device, state.range(0), state.range(1), state.range(2));
  const double error = slice.error(backward);
  if (!(error < 1e-2)) {
    bench::fail(state, "flash attention is " + std::to_string(error) + " (relative error) from attention by GEMMs");
    return;
  }
  for (int i = 0; i < 3; ++i) slice.time(backward, by_products);
  std::vector<double> times;
  for ([[maybe_unused]] const auto& _ : state) {
    times.push_back(slice.time(backward, by_products));
    state.SetIterationTime(times.back());
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  const double rate = slice.flops(backward) / median;
  state.counters["median_ms"] = 1e3 * median;
  state.counters["TFLOP/s"] = rate * 1e-12;
  state.counters["of_peak"] = rate / bench::gpu().peak;
  state.counters["peak_TFLOP/s"] = bench::gpu().peak * 1e-12;
  state.counters["error"] = error;
}

BENCHMARK(attention)
    ->ArgNames({"tokens", "context", "kv_heads", "backward", "products"})
    ->ArgsProduct({{1024, 2048, 4096}, {0, 8192, 32768}, {32}, {0, 1}, {0}})
    ->ArgsProduct({{4096}, {0, 32768}, {8}, {0, 1}, {0}})
    ->ArgsProduct({{4096}, {0, 32768}, {32}, {0, 1}, {1}})
    ->UseManualTime()
    ->Iterations(20)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::bench
