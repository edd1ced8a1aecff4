#pragma once

#include <array>
#include <cstdint>

#include "kernels/carver.h"
#include "kernels/expert_mlp.h"
#include "kernels/part_log.h"
#include "kernels/weights.h"

namespace sluice::kernels {

// The ops of a layer, in their order, on a backend: cpu::CpuBackend or cuda::CudaBackend. A backend exists for one op
// of a stage on one slice and supplies the kernels: matrix multiplications (`linear`), element-wise kernels, attention,
// loss, collectives, and scratch of its own (Scratch). Number is the type of weights and activations, Real that of
// statistics, scores and the gradients of weights. On a device, kernels are enqueued on a stream.

// Tensors that one layer stores, [rows, columns] each; see kernels/stage.h for the shapes.

// Activations that live until the input gradient.
template <class Backend>
struct LayerActivations {
  using Number = typename Backend::Number;
  using Real = typename Backend::Real;
  Number* input = nullptr;      // [n, h]; the only one that is stored with recomputation
  Real* statistics1 = nullptr;  // [n, 2]
  Number* queries = nullptr;    // [n, q], with rotary embedding
  Real* log_sums = nullptr;     // [heads, n], or by sequence: see cuda::AttentionForward
  Number* middle = nullptr;     // [n, h], input of the second norm and residual
  Real* statistics2 = nullptr;  // [n, 2]
  Number* pre = nullptr;        // [n, f] or [n, 2f], input of the activation function, of a dense layer; on a device
                                // without bias
  ExpertActivations<Backend> experts;

  void carve_input(Carver& carver, const RankSizes& sizes, std::int64_t rows) {
    input = carver.take<Number>(rows * sizes.hidden);
  }
  void carve_rest(Carver& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows) {
    statistics1 = carver.take<Real>(rows * kNormStatistics);
    queries = carver.take<Number>(rows * sizes.query_width);
    log_sums = carver.take<Real>(rows * sizes.heads);
    middle = carver.take<Number>(rows * sizes.hidden);
    statistics2 = carver.take<Real>(rows * kNormStatistics);
    if (kind == LayerKind::experts) return experts.carve(carver, sizes, rows);
    pre = carver.take<Number>(rows * sizes.up_width);
  }
};

// Inputs of the matrix multiplications, four in a dense layer, which live until the weight gradient.
template <class Backend>
struct LayerInputs {
  using Number = typename Backend::Number;
  Number* qkv = nullptr;     // [n, h]
  Number* output = nullptr;  // [n, q]
  Number* up = nullptr;      // [n, h], also of the router
  Number* down = nullptr;    // [n, f], of a dense layer
  ExpertInputs<Backend> experts;

  void carve(Carver& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows) {
    qkv = carver.take<Number>(rows * sizes.hidden);
    output = carver.take<Number>(rows * sizes.query_width);
    up = carver.take<Number>(rows * sizes.hidden);
    if (kind == LayerKind::experts) return experts.carve(carver, sizes, rows);
    down = carver.take<Number>(rows * sizes.ffn);
  }
};

// Gradients of the outputs of the matrix multiplications, which live from the input gradient to the weight
// gradient. Those of `output` and `down` are also the gradients of the residual.
template <class Backend>
struct LayerGradients {
  using Number = typename Backend::Number;
  Number* qkv = nullptr;         // [n, q + 2w]
  Number* output = nullptr;      // [n, h]
  Number* up = nullptr;          // [n, f] or [n, 2f], of a dense layer
  const Number* down = nullptr;  // [n, h], of the layer's output
  ExpertGradients<Backend> experts;

  // Carves all but `down`.
  void carve(Carver& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows) {
    qkv = carver.take<Number>(rows * sizes.qkv_width);
    output = carver.take<Number>(rows * sizes.hidden);
    if (kind == LayerKind::experts) return experts.carve(carver, sizes, rows);
    up = carver.take<Number>(rows * sizes.up_width);
  }
};

// Scratch that all layers use in turn.
template <class Backend>
struct LayerScratch {
  using Number = typename Backend::Number;
  Number* qkv = nullptr;       // [n, q + 2w], forward
  Number* hidden = nullptr;    // [n, h], backward
  Number* attended = nullptr;  // [n, q], backward
  ExpertScratch<Backend> experts;

  void carve(Carver& carver, const RankSizes& sizes, bool has_experts, std::int64_t rows) {
    qkv = carver.take<Number>(rows * sizes.qkv_width);
    hidden = carver.take<Number>(rows * sizes.hidden);
    attended = carver.take<Number>(rows * sizes.query_width);
    if (has_experts) experts.carve(carver, sizes, rows);
  }
};

// Keys and values of one layer and microbatch, [sequences, tokens, key_width] each, and with slices their gradients. A
// slice after a prefix of c tokens writes its own rows, from token c on, and reads all rows up to them.
template <class Backend>
struct LayerKeys {
  std::int64_t tokens = 0;  // per sequence, of all slices
  typename Backend::Number* keys = nullptr;
  typename Backend::Number* values = nullptr;
  typename Backend::Real* keys_gradient = nullptr;  // null without slices: the backend has a place for them
  typename Backend::Real* values_gradient = nullptr;
};

// The norm that is applied to a layer's output.
template <class Backend>
struct LayerNorm {
  const typename Backend::Number* gain = nullptr;
  const typename Backend::Number* bias = nullptr;
  typename Backend::Real* statistics = nullptr;
  typename Backend::Number* out = nullptr;  // null: none
  std::int32_t* not_finite = nullptr;       // on a device, set to 1 if any number of the layer's output is not finite
};

// A matrix of a layer and the operands of its gradient.
template <class Backend>
struct MatrixGradient {
  const typename Backend::Number* gradient = nullptr;  // of the outputs
  std::int64_t outputs = 0;
  const typename Backend::Number* input = nullptr;
  std::int64_t inputs = 0;
  std::int64_t matrix = 0;  // offset
  std::int64_t bias = -1;   // likewise
};

// One layer of a stage on one slice.
template <class Backend>
struct Layer {
  using Number = typename Backend::Number;
  using Real = typename Backend::Real;
  using Norm = LayerNorm<Backend>;

  const Backend& b;
  LayerKind kind;
  const LayerOffsets& at;
  const Number* weights;
  std::int32_t* rows_on_host;  // ExpertMlp's `sent`, of devices
  const LayerScratch<Backend>& scratch;

  // Tensors of one pass. `out` [n, h] is the layer's output in F, and the gradient of its input in I.
  struct Forward {
    const LayerKeys<Backend>& keys;
    const LayerActivations<Backend>& kept;
    const LayerInputs<Backend>& inputs;
    Number* out = nullptr;
    Norm next{};
  };
  struct Backward {
    const LayerKeys<Backend>& keys;
    const LayerActivations<Backend>& kept;
    const LayerInputs<Backend>& inputs;
    const LayerGradients<Backend>& gradients;
    Real* weight_gradients = nullptr;
    Number* out = nullptr;
    std::int32_t* not_finite = nullptr;
  };

  // Returns the first norm. It is part of `forward` unless the backend fuses norms with the residual before them.
  Norm first_norm(const LayerActivations<Backend>& kept, const LayerInputs<Backend>& inputs) const {
    return {.gain = weight(at.norm1_gain),
            .bias = weight(at.norm1_bias),
            .statistics = kept.statistics1,
            .out = inputs.qkv};
  }

  // From kept.input, writes the rest of `kept`, `inputs`, the slice's keys and values, and `out`. Stops before the last
  // matrix multiplication if `out` is null, as recomputation does.
  void forward(const Forward& pass) const {
    for (const LayerPart part : {LayerPart::attention, LayerPart::dispatch, LayerPart::experts}) {
      forward_part(part, pass);
      end(part);
    }
    if (pass.out == nullptr) return;
    forward_part(LayerPart::combine, pass);
    complete_forward(pass);
    end(LayerPart::combine);
  }
  // From gradients.down, writes the other gradients and that of the layer's input, and accumulates the gradients of
  // `keys`, biases and norms.
  void input_gradient(const Backward& pass) const {
    for (const LayerPart part : {LayerPart::combine, LayerPart::experts, LayerPart::dispatch, LayerPart::attention}) {
      input_gradient_part(part, pass);
      end(part);
    }
  }
  // Accumulates the gradients of the matrices.
  void weight_gradient(const LayerInputs<Backend>& inputs, const LayerGradients<Backend>& gradients,
                       Real* weight_gradients) const {
    for (const LayerPart part : {LayerPart::attention, LayerPart::experts}) {
      weight_gradient_part(part, inputs, gradients, weight_gradients);
    }
  }

  // The same in parts (Stage::run_part). `complete_forward` follows the forward parts: it adds the results of experts,
  // and computes the next norm.
  void forward_part(LayerPart part, const Forward& pass) const {
    if (kind == LayerKind::dense) {
      if (part != LayerPart::attention) return;
      attention_forward(pass);
      return mlp_forward(pass);
    }
    switch (part) {
      case LayerPart::attention: return attention_forward(pass);
      case LayerPart::dispatch: return experts_of(pass).dispatch(pass.inputs.up);
      case LayerPart::experts: return experts_of(pass).run_experts(pass.inputs.up, pass.out);
      case LayerPart::combine: return experts_of(pass).combine();
    }
  }
  void complete_forward(const Forward& pass) const {
    if (kind != LayerKind::experts) return;
    experts_of(pass).add_results(pass.out);
    b.residual_norm(pass.out, pass.out, pass.kept.middle, nullptr, pass.next);
  }
  void input_gradient_part(LayerPart part, const Backward& pass) const {
    if (kind == LayerKind::dense) {
      if (part != LayerPart::attention) return;
      mlp_input_gradient(pass);
      return attention_input_gradient(pass);
    }
    const LayerGradients<Backend>& gradients = pass.gradients;
    switch (part) {
      case LayerPart::attention: return attention_input_gradient(pass);
      case LayerPart::dispatch: return experts_of(pass).dispatch_gradient();
      case LayerPart::experts:
        return experts_of(pass).experts_gradient(gradients.down, gradients.experts, scratch.hidden);
      case LayerPart::combine: return experts_of(pass).combine_gradient(gradients.down, gradients.experts);
    }
  }
  void weight_gradient_part(LayerPart part, const LayerInputs<Backend>& inputs,
                            const LayerGradients<Backend>& gradients, Real* weight_gradients) const {
    const std::int64_t h = b.sizes.hidden;
    const ExpertActivations<Backend> none;
    const ExpertMlp<Backend> experts = expert_mlp(none, inputs.experts);
    if (part == LayerPart::experts && kind == LayerKind::experts) {
      return experts.experts_weight_gradient(inputs.up, gradients.down, gradients.experts, weight_gradients);
    }
    if (part != LayerPart::attention) return;
    std::array<MatrixGradient<Backend>, 4> matrices = {
        {{gradients.qkv, b.sizes.qkv_width, inputs.qkv, h, at.qkv, at.qkv_bias},
         {gradients.output, h, inputs.output, b.sizes.query_width, at.output, at.output_bias}}};
    if (kind == LayerKind::dense) {
      matrices[2] = {gradients.up, b.sizes.up_width, inputs.up, h, at.up, at.up_bias};
      matrices[3] = {gradients.down, h, inputs.down, b.sizes.ffn, at.down, at.down_bias};
    }
    b.weight_gradients(matrices, weight_gradients);
    if (kind == LayerKind::experts) experts.router_weight_gradient(inputs.up, gradients.experts, weight_gradients);
  }

 private:
  const Number* weight(std::int64_t offset) const { return offset < 0 ? nullptr : weights + offset; }
  ExpertMlp<Backend> expert_mlp(const ExpertActivations<Backend>& kept, const ExpertInputs<Backend>& inputs) const {
    return {b, at, weights, kept, inputs, scratch.experts, Backend::kOnDevice ? rows_on_host : inputs.counts};
  }
  template <class Pass>
  ExpertMlp<Backend> experts_of(const Pass& pass) const {
    return expert_mlp(pass.kept.experts, pass.inputs.experts);
  }
  void end(LayerPart part) const {
    if (kind == LayerKind::experts && b.call.parts != nullptr) b.call.parts->end(part);
  }

  void attention_forward(const Forward& pass) const {
    const auto& [keys, kept, inputs, out, next] = pass;
    const std::int64_t n = b.rows();
    const std::int64_t h = b.sizes.hidden;
    if (!Backend::kFusesNorms) b.residual_norm(kept.input, kept.input, nullptr, nullptr, first_norm(kept, inputs));
    b.linear.forward(inputs.qkv, weight(at.qkv), n, b.sizes.qkv_width, h, scratch.qkv);
    b.attention_forward(scratch.qkv, weight(at.qkv_bias), keys, kept.queries, inputs.output, kept.log_sums);
    b.linear.forward(inputs.output, weight(at.output), n, h, b.sizes.query_width, kept.middle);
    b.all_reduce(kept.middle, n * h);
    b.residual_norm(kept.middle, kept.middle, kept.input, weight(at.output_bias),
                    {.gain = weight(at.norm2_gain),
                     .bias = weight(at.norm2_bias),
                     .statistics = kept.statistics2,
                     .out = inputs.up});
    if (kind == LayerKind::experts) experts_of(pass).route(inputs.up);
  }

  void mlp_forward(const Forward& pass) const {
    const auto& [keys, kept, inputs, out, next] = pass;
    const std::int64_t n = b.rows();
    const std::int64_t h = b.sizes.hidden;
    b.linear.forward(inputs.up, weight(at.up), n, b.sizes.up_width, h, kept.pre);
    b.activate(kept.pre, weight(at.up_bias), n, b.sizes.ffn, inputs.down);
    if (out == nullptr) return;
    b.linear.forward(inputs.down, weight(at.down), n, h, b.sizes.ffn, out);
    b.all_reduce(out, n * h);
    b.residual_norm(out, out, kept.middle, weight(at.down_bias), next);
  }

  // Writes the gradient of the MLP's input to scratch.hidden.
  void mlp_input_gradient(const Backward& pass) const {
    const auto& [keys, kept, inputs, gradients, weight_gradients, out, not_finite] = pass;
    const std::int64_t n = b.rows();
    const std::int64_t h = b.sizes.hidden;
    const std::int64_t f = b.sizes.ffn;
    const std::int64_t width = b.sizes.up_width;
    add_bias_gradient(gradients.down, h, at.down_bias, weight_gradients);
    // With a gate, the gradient of the activation's output goes to the right half of `up`.
    b.linear.input_gradient(gradients.down, weight(at.down), n, h, f, gradients.up + (width - f),
                            {.inputs_stride = width});
    b.activate_gradient(kept.pre, weight(at.up_bias), n, f, gradients.up);
    add_bias_gradient(gradients.up, width, at.up_bias, weight_gradients);
    b.linear.input_gradient(gradients.up, weight(at.up), n, width, h, scratch.hidden);
    b.all_reduce(scratch.hidden, n * h);
  }

  void attention_input_gradient(const Backward& pass) const {
    const auto& [keys, kept, inputs, gradients, weight_gradients, out, not_finite] = pass;
    const std::int64_t n = b.rows();
    const std::int64_t h = b.sizes.hidden;
    const auto of = [&pass](std::int64_t offset) { return offset < 0 ? nullptr : pass.weight_gradients + offset; };

    if (kind == LayerKind::experts) experts_of(pass).add_input_gradients(gradients.experts, scratch.hidden);
    b.norm_gradient(scratch.hidden, kept.middle, gradients.down, weight(at.norm2_gain), kept.statistics2,
                    gradients.output, of(at.norm2_gain), of(at.norm2_bias));

    // Attention.
    add_bias_gradient(gradients.output, h, at.output_bias, weight_gradients);
    b.linear.input_gradient(gradients.output, weight(at.output), n, h, b.sizes.query_width, scratch.attended);
    b.attention_gradient(keys, kept.queries, inputs.output, kept.log_sums, scratch.attended, gradients.qkv);
    add_bias_gradient(gradients.qkv, b.sizes.qkv_width, at.qkv_bias, weight_gradients);
    b.linear.input_gradient(gradients.qkv, weight(at.qkv), n, b.sizes.qkv_width, h, scratch.hidden);
    b.all_reduce(scratch.hidden, n * h);
    b.norm_gradient(scratch.hidden, kept.input, gradients.output, weight(at.norm1_gain), kept.statistics1, out,
                    of(at.norm1_gain), of(at.norm1_bias), not_finite);
  }

  void add_bias_gradient(const Number* gradient, std::int64_t width, std::int64_t bias, Real* weight_gradients) const {
    if (bias >= 0) b.add_bias_gradient(gradient, width, weight_gradients + bias);
  }
};

}  // namespace sluice::kernels
