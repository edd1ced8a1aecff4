// One transformer layer of hidden size 4096 on one GPU, one slice at a time: the rate of its ops as a fraction of that
// of a large bfloat16 GEMM. kernels/pytorch_layer.py measures the same rows in PyTorch. Rows whose model ends with
// _cudnn use cuDNN; their label has the reasons if one of them does not run something.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/kernels/gpu_main.h"
#include "benchmarks/kernels/one_gpu.h"
#include "exec/device/provider.h"
#include "kernels/attention_library.h"
#include "kernels/device_kernels.h"
#include "kernels/stage.h"
#include "model/blocks/model.h"

namespace sluice::bench {
namespace {

constexpr std::array kOps = {"F", "B", "I+W", "W"};
enum Op : std::uint8_t { kForward, kBackward, kBackwardInHalves, kWeightGradient };

Transformer gpt() {
  Transformer model{.name = "gpt", .layers = 1, .hidden = 4096, .heads = 32, .kv_heads = 32, .head_dim = 128};
  model.ffn_hidden = 16384;
  model.vocab = 256;
  model.positions = 16384;
  return model;
}

Transformer llama(int kv_heads) {
  Transformer model = gpt();
  model.name = "llama";
  model.kv_heads = kv_heads;
  model.ffn_hidden = 11008;
  model.gated = model.rms_norm = true;
  model.positions = 0;
  model.qkv_bias = model.projection_bias = model.mlp_bias = false;
  return model;
}

// A layer and the last slice of one sequence, with all buffers that its ops read and write.
class LayerSlice {
 public:
  LayerSlice(Device& device, const Transformer& model, AttentionChoice attention, std::int64_t tokens,
             std::int64_t context)
      : device_(device),
        memory_(device),
        stream_(device.make_stream(StreamPriority::normal)),
        stage_(device_kernels()->make_stage(
            {.model = model, .contents = {.layers = 1}, .sliced = context > 0, .attention = attention},
            Precision::bfloat16)),
        boundary_(tokens * model.hidden) {
    make_weights();
    const SliceShape shape{.tokens = tokens, .context = context};
    const SliceMemory sizes = stage_->slice_memory(shape);
    const SliceMemory all = stage_->slice_memory({.tokens = context + tokens});
    keys_gradient_bytes_ = all.keys_values_gradient;
    call_ = {.shape = shape,
             .weights = weights_,
             .gradients = gradients_,
             .scratch = memory_.room(stage_->scratch_bytes(shape)),
             .to_input_gradient = memory_.room(sizes.to_input_gradient),
             .to_weight_gradient = memory_.room(sizes.to_weight_gradient),
             .output_gradients = memory_.room(sizes.output_gradients),
             .keys_values = memory_.numbers(all.keys_values / 2, 10),
             .keys_values_gradient = memory_.room(keys_gradient_bytes_),
             .sequence_tokens = context + tokens,
             .input = memory_.numbers(boundary_, 1),
             .output = memory_.room(sizes.boundary),
             .output_gradient = memory_.numbers(boundary_, 2, 1e-2F),
             .input_gradient = memory_.room(sizes.boundary),
             .stream = stream_.get(),
             .device = &device_};
    std::byte* const tables = memory_.room(stage_->table_bytes(context + tokens));
    stage_->fill_tables(tables, context + tokens, *stream_);
    call_.tables = tables;
    device_.synchronize(*stream_);
  }

  // In the backward, the gradients of keys and values start from zero, as in the backward of the last slice. The weight
  // gradient alone reads what the last I left.
  void run(Op op) {
    if (op == kForward) {
      stage_->forward(call_);
      return;
    }
    if (op == kWeightGradient) {
      stage_->weight_gradient(call_);
      return;
    }
    device_.zero(call_.keys_values_gradient, keys_gradient_bytes_, *stream_);
    if (op == kBackward) {
      stage_->backward(call_);
    } else {
      stage_->input_gradient(call_);
      stage_->weight_gradient(call_);
    }
  }
  double time(Op op) {
    return bench::seconds(device_, *stream_, [&] { run(op); });
  }

  // Describes an error in the results; empty if there is none.
  std::string wrong() {
    std::vector<std::vector<float>> whole;
    for (const Op op : {kBackward, kBackwardInHalves}) {
      device_.zero(gradients_, stage_->memory().gradients, *stream_);
      run(kForward);
      run(op);
      device_.synchronize(*stream_);
      if (!finite()) return std::string(kOps[op]) + ": not all results are finite";
      const std::vector<std::vector<float>> results = some_results();
      if (op == kBackward) whole = results;
      for (std::size_t i = 0; i < results.size(); ++i) {
        if (whole[i].empty()) continue;  // gradients of keys without slices
        // Partial sums in another order round differently.
        const double error = bench::relative_error(results[i], whole[i]);
        if (!(error < 1e-3))
          return "I and W are " + std::to_string(error) + " (relative error) from B in result " + std::to_string(i);
      }
    }
    return "";
  }

 private:
  void make_weights() {
    weights_ = memory_.room(stage_->memory().weights);
    gradients_ = memory_.room(stage_->memory().gradients);
    std::uint32_t seed = 100;
    for (const Parameter& parameter : stage_->parameters()) {
      std::byte* const to = weights_ + parameter.offset * stage_->element_bytes();
      const bool gain = parameter.columns == 1 && parameter.name.ends_with(".weight");
      memory_.write_numbers(to, parameter.size(), seed++, 0.02F, gain ? 1.0F : 0.0F);
    }
  }

  // Whether the output, the gradient of the input, and the gradients of weights, keys and values are finite.
  bool finite() {
    std::byte* const host = device_.allocate_host(sizeof(std::int32_t));
    auto* const flag = reinterpret_cast<std::int32_t*>(host);
    *flag = 0;
    const auto look = [&](Element element, const void* data, std::int64_t bytes) {
      device_kernels()->flag_not_finite(*stream_, element, data, bytes / bytes_of(element), flag);
    };
    look(Element::bfloat16, call_.output, boundary_ * 2);
    look(Element::bfloat16, call_.input_gradient, boundary_ * 2);
    look(Element::float32, gradients_, stage_->memory().gradients);
    look(Element::float32, call_.keys_values_gradient, keys_gradient_bytes_);
    device_.synchronize(*stream_);
    const bool all = *flag == 0;
    device_.release_host(host);
    return all;
  }

  // The gradient of the input, and the first elements of the gradients of each parameter and of keys.
  std::vector<std::vector<float>> some_results() const {
    constexpr std::int64_t kSome = 1 << 16;
    std::vector<std::vector<float>> out;
    out.push_back(memory_.read(call_.input_gradient, boundary_, Element::bfloat16));
    for (const Parameter& parameter : stage_->parameters()) {
      const std::byte* const from = gradients_ + parameter.offset * bytes_of(Element::float32);
      // The gradient of a key's bias is zero up to rounding, as softmax is invariant to it.
      if (parameter.name.ends_with("key.bias")) continue;
      out.push_back(memory_.read(from, std::min(kSome, parameter.size()), Element::float32));
    }
    out.push_back(
        memory_.read(call_.keys_values_gradient, std::min(kSome, keys_gradient_bytes_ / 4), Element::float32));
    return out;
  }

  Device& device_;
  bench::Memory memory_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Stage> stage_;
  std::int64_t boundary_;
  std::int64_t keys_gradient_bytes_ = 0;
  std::byte* weights_ = nullptr;
  std::byte* gradients_ = nullptr;
  SliceCall call_;
};

// Executed FLOPs: causal attention counts only visible keys. I and W together equal B, and W has those of the GEMMs of
// F.
double flops_of(const Transformer& model, std::int64_t tokens, std::int64_t context, Op op) {
  const SliceFlops flops = layer_slice_flops(model, tokens, context);
  if (op == kWeightGradient) return flops.weight_gradient();
  return op == kForward ? flops.forward() : flops.backward();
}

// The latest slice and its error, cached because its ops are timed one after the other.
struct Kept {
  std::string key;
  std::unique_ptr<LayerSlice> slice;
  std::string wrong;
};
const Kept& kept_slice(Device& device, const Transformer& model, AttentionChoice attention, std::int64_t tokens,
                       std::int64_t context) {
  static Kept kept;
  const std::string key = model.name + (attention == AttentionChoice::cudnn ? " cudnn " : " ") +
                          std::to_string(model.kv_heads) + " " + std::to_string(tokens) + " " + std::to_string(context);
  if (kept.key == key) return kept;
  kept = {};  // releases its memory first
  kept.slice = std::make_unique<LayerSlice>(device, model, attention, tokens, context);
  kept.wrong = kept.slice->wrong();
  kept.key = key;
  return kept;
}

// Why a library did not run what it was asked for: each reason after ", ".
std::string notes_of(Device& device, AttentionChoice attention) {
  std::string text;
  const AttentionLibrary* const library = device.attention_library();
  if (library == nullptr || attention != AttentionChoice::cudnn) return text;
  for (const std::string& note : library->notes()) text += ", " + note;
  return text;
}

// tokens, context, op (index in kOps).
void layer(benchmark::State& state, const Transformer& model, AttentionChoice attention = AttentionChoice::gemm) {
  const std::int64_t tokens = state.range(0);
  const std::int64_t context = state.range(1);
  const auto op = static_cast<Op>(state.range(2));
  state.SetLabel(kOps[op]);
  Device& device = *bench::gpu().device;
  if (!device.has_bfloat16()) {
    state.SkipWithError((device.name() + " does not support bfloat16 GEMMs").c_str());
    return;
  }
  const Kept& kept = kept_slice(device, model, attention, tokens, context);
  if (!kept.wrong.empty()) {
    bench::fail(state, kept.wrong);
    return;
  }
  LayerSlice& slice = *kept.slice;
  slice.run(kForward);
  slice.run(kBackwardInHalves);
  for (int i = 0; i < 3; ++i) slice.time(op);
  std::vector<double> times;
  for ([[maybe_unused]] const auto& _ : state) {
    times.push_back(slice.time(op));
    state.SetIterationTime(times.back());
  }
  state.SetLabel(kOps[op] + notes_of(device, attention));
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  const double rate = flops_of(model, tokens, context, op) / median;
  state.counters["median_ms"] = 1e3 * median;
  state.counters["least_ms"] = 1e3 * times.front();
  state.counters["most_ms"] = 1e3 * times.back();
  state.counters["TFLOP/s"] = rate * 1e-12;
  state.counters["of_peak"] = rate / bench::gpu().peak;
  state.counters["peak_TFLOP/s"] = bench::gpu().peak * 1e-12;
}

void all_slices(benchmark::internal::Benchmark* rows) {
  rows->ArgNames({"tokens", "context", "op"})->UseManualTime()->Iterations(20)->Unit(benchmark::kMillisecond);
  for (const std::int64_t tokens : {1024, 2048, 4096}) {
    for (const std::int64_t context : {0, 8192}) {
      for (const Op op : {kForward, kBackward, kBackwardInHalves, kWeightGradient}) rows->Args({tokens, context, op});
    }
  }
}
BENCHMARK_CAPTURE(layer, gpt, gpt())->Apply(all_slices);
BENCHMARK_CAPTURE(layer, gpt_cudnn, gpt(), AttentionChoice::cudnn)->Apply(all_slices);
BENCHMARK_CAPTURE(layer, llama, llama(32))->Apply(all_slices);
BENCHMARK_CAPTURE(layer, llama_cudnn, llama(32), AttentionChoice::cudnn)->Apply(all_slices);
BENCHMARK_CAPTURE(layer, llama_8_kv_heads, llama(8))->Apply(all_slices);
BENCHMARK_CAPTURE(layer, llama_8_kv_heads_cudnn, llama(8), AttentionChoice::cudnn)->Apply(all_slices);

}  // namespace
}  // namespace sluice::bench
