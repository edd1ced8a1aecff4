// Attention by cuDNN of a slice after a prefix on one GPU: its rate as a fraction of that of a large bfloat16 GEMM.
// Its results are first compared with those of attention by GEMMs.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/kernels/gpu_main.h"
#include "benchmarks/kernels/one_gpu.h"
#include "kernels/attention_library.h"
#include "kernels/cuda/gemm_attention.h"

namespace sluice::bench {
namespace {

constexpr int kCudnnHeads = 32;
constexpr int kCudnnHeadDim = 128;

// A slice of one sequence after a prefix.
class OneSlice {
 public:
  OneSlice(Device& device, std::int64_t tokens, std::int64_t context, std::int64_t kv_heads)
      : device_(device), memory_(device), stream_(device.make_stream(StreamPriority::normal)) {
    problem_.sizes = {.sequences = 1,
                      .tokens = static_cast<int>(tokens),
                      .heads = kCudnnHeads,
                      .kv_heads = static_cast<int>(kv_heads),
                      .head_dim = kCudnnHeadDim,
                      .context = context};
    const AttentionSizes& of = problem_.sizes;
    problem_.key_stride = of.key_width();
    problem_.key_sequence_stride = problem_.keys() * of.key_width();
    const std::int64_t elements = of.rows() * of.query_width();
    const std::int64_t key_elements = problem_.key_sequence_stride;
    const std::int64_t bytes = library_workspace_bytes(of);
    forward_ = {.queries = memory_.numbers(elements, 3),
                .keys = memory_.numbers(key_elements, 10),
                .values = memory_.numbers(key_elements, 11),
                .out = memory_.room(2 * elements),
                .log_sums = reinterpret_cast<float*>(memory_.room(4 * of.rows() * of.heads)),
                .workspace = memory_.room(bytes),
                .workspace_bytes = bytes};
    backward_ = {.queries = forward_.queries,
                 .keys = forward_.keys,
                 .values = forward_.values,
                 .out = forward_.out,
                 .out_gradient = memory_.numbers(elements, 4),
                 .log_sums = forward_.log_sums,
                 .queries_gradient = memory_.room(2 * elements),
                 .keys_gradient = memory_.room(2 * key_elements),
                 .values_gradient = memory_.room(2 * key_elements),
                 .workspace = forward_.workspace,
                 .workspace_bytes = bytes};
  }

  bool run(bool backward) {
    AttentionLibrary& library = *device_.attention_library();
    AttentionProblem problem = problem_;
    if (!backward) return library.forward(problem, forward_, *stream_);
    problem.queries_gradient_stride = problem.sizes.query_width();
    problem.keys_gradient_stride = problem.key_stride;
    problem.keys_gradient_sequence_stride = problem.key_sequence_stride;
    return library.backward(problem, backward_, *stream_);
  }
  double time(bool backward) {
    return bench::seconds(device_, *stream_, [&] { run(backward); });
  }

  // Relative error of the output, or of the gradient of queries, against attention by GEMMs.
  double error(bool backward) {
    const AttentionSizes& of = problem_.sizes;
    const std::int64_t elements = of.rows() * of.query_width();
    const std::int64_t key_bytes = 2 * problem_.key_sequence_stride;
    const std::int64_t values_at = values_after(problem_.keys(), of.key_width());
    std::byte* const block = memory_.room(4 * values_at);
    device_.copy(block, forward_.keys, key_bytes, *stream_);
    device_.copy(block + 2 * values_at, forward_.values, key_bytes, *stream_);
    const cuda::KeyRows keys{.tokens = problem_.keys(),
                             .keys = block,
                             .keys_gradient = reinterpret_cast<float*>(memory_.room(8 * values_at))};
    std::byte* const out = memory_.room(2 * elements);
    auto* const sums = reinterpret_cast<float*>(memory_.room(4 * of.rows() * of.heads));
    std::byte* const scratch = memory_.room(cuda::gemm_attention_scratch_bytes(of));
    cuda::gemm_attention_forward(
        {.shape = of, .queries = forward_.queries, .keys = keys, .out = out, .log_sums = sums, .scratch = scratch},
        device_, *stream_);
    std::byte* const gradient = memory_.room(2 * elements);
    if (backward) {
      auto* const products = reinterpret_cast<float*>(memory_.room(4 * of.rows() * of.heads));
      cuda::row_dot_products(of, Element::bfloat16, out, backward_.out_gradient, products, *stream_);
      cuda::gemm_attention_backward({.shape = of,
                                     .queries = forward_.queries,
                                     .keys = keys,
                                     .log_sums = sums,
                                     .out_gradient = backward_.out_gradient,
                                     .dot_products = products,
                                     .queries_gradient = gradient,
                                     .queries_gradient_stride = of.query_width(),
                                     .scratch = scratch},
                                    device_, *stream_);
    }
    device_.synchronize(*stream_);
    const void* const theirs = backward ? backward_.queries_gradient : forward_.out;
    return bench::relative_error(memory_.read(theirs, elements, Element::bfloat16),
                                 memory_.read(backward ? gradient : out, elements, Element::bfloat16));
  }

  // Of the executed causal part.
  double flops(bool backward) const {
    const auto tokens = static_cast<double>(problem_.sizes.tokens);
    const double pairs = tokens * static_cast<double>(problem_.sizes.context) + tokens * (tokens + 1) / 2;
    return (backward ? 5 : 2) * 2.0 * kCudnnHeadDim * kCudnnHeads * pairs;
  }

 private:
  Device& device_;
  bench::Memory memory_;
  std::unique_ptr<Stream> stream_;
  AttentionProblem problem_;
  LibraryForward forward_;
  LibraryBackward backward_;
};

// tokens, context, key heads, backward (0 or 1).
void attention(benchmark::State& state) {
  const bool backward = state.range(3) != 0;
  Device& device = *bench::gpu().device;
  OneSlice slice(device, state.range(0), state.range(1), state.range(2));
  if (!slice.run(false) || !slice.run(backward)) {
    const std::vector<std::string>& notes = device.attention_library()->notes();
    state.SkipWithError((notes.empty() ? "cuDNN does not run it" : notes.back()).c_str());
    return;
  }
  const double error = slice.error(backward);
  if (!(error < 1e-2)) {
    bench::fail(state, "cuDNN is " + std::to_string(error) + " (relative error) from attention by GEMMs");
    return;
  }
  for (int i = 0; i < 3; ++i) slice.time(backward);
  std::vector<double> times;
  for ([[maybe_unused]] const auto& _ : state) {
    times.push_back(slice.time(backward));
    state.SetIterationTime(times.back());
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  const double rate = slice.flops(backward) / median;
  state.counters["median_ms"] = 1e3 * median;
  state.counters["TFLOP/s"] = rate * 1e-12;
  state.counters["of_peak"] = rate / bench::gpu().peak;
  state.counters["error"] = error;
}

BENCHMARK(attention)
    ->ArgNames({"tokens", "context", "kv_heads", "backward"})
    ->ArgsProduct({{1024, 2048, 4096}, {0, 8192, 32768}, {32}, {0, 1}})
    ->ArgsProduct({{4096}, {0, 32768}, {8}, {0, 1}})
    ->UseManualTime()
    ->Iterations(20)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice::bench
