// One layer of hidden size 1024 on a slice, op by op, and in the same iteration only the BLAS calls for the GEMMs of
// the op: the fraction of the BLAS rate that an op reaches.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/stage.h"
#include "model/blocks/layer.h"
#include "model/blocks/model.h"

namespace sluice::bench {
namespace {

// Elements of the weight matrices of a layer.
std::int64_t layer_matrix_elements(const Transformer& transformer) {
  const Model model = transformer;
  return layer_parameters(model.kind(0), model.style(), {}).linear;
}

Transformer model_of_one_layer(bool llama) {
  Transformer model{.name = "one layer",
                    .layers = 1,
                    .hidden = 1024,
                    .heads = 16,
                    .kv_heads = 16,
                    .head_dim = 64,
                    .ffn_hidden = 4096,
                    .vocab = 256,
                    .positions = 8192};
  if (llama) {
    model.kv_heads = 4;
    model.ffn_hidden = 2816;
    model.gated = model.rms_norm = true;
    model.qkv_bias = model.projection_bias = model.mlp_bias = false;
    model.positions = 0;
  }
  return model;
}

// An aligned block of small numbers.
class Block {
 public:
  explicit Block(std::int64_t bytes) : memory_(static_cast<std::size_t>(bytes) + kBufferAlignment) {
    void* begin = memory_.data();
    std::size_t space = memory_.size();
    data_ = static_cast<std::byte*>(std::align(kBufferAlignment, static_cast<std::size_t>(bytes), begin, space));
    float* const values = floats();
    for (std::int64_t i = 0; i < bytes / 4; ++i) values[i] = 1e-3F * static_cast<float>(i % 17 - 8);
  }
  std::byte* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }

 private:
  std::vector<std::byte> memory_;
  std::byte* data_ = nullptr;
};

enum class Half : std::uint8_t { forward, input, weight };

// The GEMMs of one layer: of the weights, and of attention one per head (over the full rectangle of queries and keys,
// although causal attention needs less).
class Products {
 public:
  Products(const Transformer& model, std::int64_t tokens, std::int64_t context)
      : model_(model),
        n_(tokens),
        keys_(context + tokens),
        wide_(4 * tokens * (model.query_width() + model.key_value_width() + up_width(model))),
        narrow_(4 * tokens * std::max<std::int64_t>(model.hidden, model.ffn_hidden)),
        key_values_(4 * keys_ * model.key_value_width()),
        scores_(4 * tokens * keys_),
        weights_(4 * layer_matrix_elements(model)),
        gradients_(4 * layer_matrix_elements(model)) {}

  void run(Half half) const {
    const std::int64_t h = model_.hidden;
    const float* weights = weights_.floats();
    const auto linear = [&](std::int64_t outputs, std::int64_t inputs) {
      float* const y = wide_.floats();
      float* const x = narrow_.floats();
      switch (half) {
        case Half::forward:
          cpu::gemm_nt<float>(n_, outputs, inputs, 1, x, inputs, weights, inputs, cpu::Into::set, y, outputs);
          break;
        case Half::input:
          cpu::gemm_nn<float>(n_, inputs, outputs, y, outputs, weights, inputs, cpu::Into::set, x, inputs);
          break;
        case Half::weight:
          cpu::gemm_tn<float>(outputs, inputs, n_, y, outputs, x, inputs,
                              gradients_.floats() + (weights - weights_.floats()), inputs);
          break;
      }
      weights += outputs * inputs;
    };
    linear(model_.query_width() + model_.key_value_width(), h);
    linear(h, model_.query_width());
    linear(up_width(model_), h);
    linear(h, model_.ffn_hidden);
    if (half != Half::weight) attention(half == Half::forward ? 1 : 2);
  }
  double flops(Half half) const {
    const double matrices = 2.0 * static_cast<double>(n_ * layer_matrix_elements(model_));
    const double attention = 4.0 * static_cast<double>(n_ * keys_ * model_.query_width());
    return matrices + (half == Half::forward ? 1 : half == Half::input ? 2 : 0) * attention;
  }

 private:
  static std::int64_t up_width(const Transformer& model) { return std::int64_t{model.ffn_hidden} * model.mlp_inputs(); }

  void attention(int times) const {
    const std::int64_t d = model_.head_dim;
    const std::int64_t q = model_.query_width();
    const std::int64_t w = std::int64_t{model_.kv_heads} * d;
    for (int head = 0; head < times * model_.heads; ++head) {
      const std::int64_t at = head % model_.heads * d;
      const std::int64_t key_at = at / d / (model_.heads / model_.kv_heads) * d;
      cpu::gemm_nt<float>(n_, keys_, d, 1, wide_.floats() + at, q, key_values_.floats() + key_at, w, cpu::Into::set,
                          scores_.floats(), keys_);
      cpu::gemm_nn<float>(n_, d, keys_, scores_.floats(), keys_, key_values_.floats() + key_at, w, cpu::Into::set,
                          wide_.floats() + at, q);
    }
  }

  const Transformer& model_;
  std::int64_t n_;
  std::int64_t keys_;
  Block wide_;
  Block narrow_;
  Block key_values_;
  Block scores_;
  Block weights_;
  Block gradients_;
};

// The layer with the buffers that the op reads and writes.
class LayerUnderTest {
 public:
  LayerUnderTest(const Transformer& model, std::int64_t tokens, std::int64_t context)
      : stage_(make_cpu_stage({.model = model, .contents = {.layers = 1}, .sliced = true}, Precision::float32)) {
    call_.shape = {.tokens = tokens, .context = context};
    const SliceMemory memory = stage_->slice_memory(call_.shape);
    call_.weights = block(stage_->memory().weights);
    call_.gradients = block(stage_->memory().gradients);
    call_.scratch = block(stage_->scratch_bytes(call_.shape));
    call_.to_input_gradient = block(memory.to_input_gradient);
    call_.to_weight_gradient = block(memory.to_weight_gradient);
    call_.output_gradients = block(memory.output_gradients);
    call_.input = block(memory.boundary);
    call_.output = block(memory.boundary);
    call_.output_gradient = block(memory.boundary);
    call_.input_gradient = block(memory.boundary);
    const SliceMemory all = stage_->slice_memory({.tokens = context + tokens});
    call_.keys_values = block(all.keys_values);
    call_.keys_values_gradient = block(all.keys_values_gradient);
    call_.sequence_tokens = context + tokens;
    stage_->initialise(const_cast<std::byte*>(call_.weights), 1);
    stage_->forward(call_);
    stage_->input_gradient(call_);
  }
  const Stage& stage() const { return *stage_; }
  SliceCall& call() { return call_; }

 private:
  std::byte* block(std::int64_t bytes) {
    blocks_.push_back(std::make_unique<Block>(bytes));
    return blocks_.back()->data();
  }

  std::unique_ptr<Stage> stage_;
  SliceCall call_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Counters: GFLOP/s of the op (model FLOPs, with only visible keys in causal attention), of the BLAS, and their ratio.
template <class Op>
void measure(benchmark::State& state, const std::vector<Half>& halves, const Op& op) {
  const std::int64_t tokens = state.range(0);
  const std::int64_t context = state.range(1);
  const Transformer model = model_of_one_layer(state.range(2) != 0);
  LayerUnderTest layer(model, tokens, context);
  const Products products(model, tokens, context);
  const SliceFlops flops = layer_slice_flops(model, tokens, context);
  double op_seconds = 0;
  double blas_seconds = 0;
  double op_flops = 0;
  double blas_flops = 0;
  for (auto _ : state) {
    const auto op_begin = std::chrono::steady_clock::now();
    op(layer.stage(), layer.call());
    const double seconds = seconds_since(op_begin);
    const auto blas_begin = std::chrono::steady_clock::now();
    for (const Half half : halves) products.run(half);
    blas_seconds += seconds_since(blas_begin);
    op_seconds += seconds;
    for (const Half half : halves) {
      op_flops += half == Half::forward ? flops.forward()
                  : half == Half::input ? flops.input_gradient()
                                        : flops.weight_gradient();
      blas_flops += products.flops(half);
    }
    state.SetIterationTime(seconds);
  }
  state.counters["op_gflops"] = op_flops / op_seconds * 1e-9;
  state.counters["blas_gflops"] = blas_flops / blas_seconds * 1e-9;
  state.counters["op_over_blas"] = op_flops / op_seconds / (blas_flops / blas_seconds);
}

void forward(benchmark::State& state) {
  measure(state, {Half::forward}, [](const Stage& stage, SliceCall& call) { stage.forward(call); });
}
void input_gradient(benchmark::State& state) {
  measure(state, {Half::input}, [](const Stage& stage, SliceCall& call) { stage.input_gradient(call); });
}
void weight_gradient(benchmark::State& state) {
  measure(state, {Half::weight}, [](const Stage& stage, SliceCall& call) { stage.weight_gradient(call); });
}
void backward(benchmark::State& state) {
  measure(state, {Half::input, Half::weight}, [](const Stage& stage, SliceCall& call) { stage.backward(call); });
}

// Slices of 128 to 1024 tokens, without context and at the end of 1024 tokens; GPT, and one of Llama.
void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"tokens", "context", "llama"});
  for (const std::int64_t tokens : {128, 256, 512, 1024}) {
    benchmark->Args({tokens, 0, 0});
    if (tokens < 1024) benchmark->Args({tokens, 1024 - tokens, 0});
  }
  benchmark->Args({512, 512, 1});
  benchmark->UseManualTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK(forward)->Apply(shapes);
BENCHMARK(input_gradient)->Apply(shapes);
BENCHMARK(weight_gradient)->Apply(shapes);
BENCHMARK(backward)->Apply(shapes);

}  // namespace
}  // namespace sluice::bench
