#include "kernels/cuda/layer.h"

#include "kernels/carver.h"
#include "kernels/cuda/flash_attention.h"

namespace sluice::kernels::cuda {

void LayerActivations::carve_input(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows) {
  input = carver.take<Half>(rows * sizes.hidden);
}

void LayerActivations::carve_rest(BlockCarver& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows) {
  statistics1 = carver.take<float>(rows * kNormStatistics);
  queries = carver.take<Half>(rows * sizes.query_width);
  log_sums = carver.take<float>(rows * sizes.heads);
  middle = carver.take<Half>(rows * sizes.hidden);
  statistics2 = carver.take<float>(rows * kNormStatistics);
  if (kind == LayerKind::experts) return experts.carve(carver, sizes, rows);
  pre = carver.take<Half>(rows * sizes.up_width);
}

void LayerInputs::carve(BlockCarver& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows) {
  qkv = carver.take<Half>(rows * sizes.hidden);
  output = carver.take<Half>(rows * sizes.query_width);
  up = carver.take<Half>(rows * sizes.hidden);
  if (kind == LayerKind::experts) return experts.carve(carver, sizes, rows);
  down = carver.take<Half>(rows * sizes.ffn);
}

void LayerGradients::carve(BlockCarver& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows) {
  qkv = carver.take<Half>(rows * sizes.qkv_width);
  output = carver.take<Half>(rows * sizes.hidden);
  if (kind == LayerKind::experts) return experts.carve(carver, sizes, rows);
  up = carver.take<Half>(rows * sizes.up_width);
}

LayerScratch::LayerScratch(BlockCarver& carver, const RankSizes& sizes, const SliceShape& shape,
                           const StageSpec& spec) {
  const std::int64_t rows = shape.rows();
  attention = carver.take<std::byte>(attention_scratch_bytes(attention_sizes(sizes, shape), spec.attention));
  qkv = carver.take<Half>(rows * sizes.qkv_width);
  hidden = carver.take<Half>(rows * sizes.hidden);
  attended = carver.take<Half>(rows * sizes.query_width);
  dot_products = carver.take<float>(rows * sizes.heads);
  if (!spec.sliced) keys_gradient = carver.take<float>(2 * values_after(rows, sizes.key_width));
  if (fuses_bias_gradients(spec)) {
    bias_sums = carver.take<float>(padded(sizes.qkv_width) + 2 * padded(sizes.hidden) + padded(sizes.up_width));
  }
  if (spec.contents.expert_layers > 0) experts = ExpertScratch(carver, sizes, rows);
}

QkvShape Layer::qkv_shape(const LayerKeys& keys) const {
  return {.rows = shape.rows(),
          .tokens = shape.tokens,
          .heads = static_cast<int>(sizes.heads),
          .kv_heads = static_cast<int>(sizes.kv_heads),
          .head_dim = static_cast<int>(sizes.head_dim),
          .key_tokens = keys.tokens,
          .key_context = shape.context,
          .angles = angles};
}

NormWeights Layer::norm_weights(std::int64_t gain, std::int64_t bias) const {
  return {.gain = weight(gain), .bias = weight(bias), .rms = spec.model.rms_norm};
}

void Layer::sum_over_group(Half* data, std::int64_t count) const {
  if (spec.tensor_parallel > 1) group->all_reduce_sum(data, count, linear.element, linear.stream);
}

NextNorm Layer::first_norm(const LayerActivations& kept, const LayerInputs& inputs) const {
  return {.weights = norm_weights(at.norm1_gain, at.norm1_bias), .statistics = kept.statistics1, .out = inputs.qkv};
}

void Layer::attention_forward(const Forward& pass) const {
  const auto& [keys, kept, inputs, scratch, out, next] = pass;
  const std::int64_t n = shape.rows();
  const std::int64_t h = sizes.hidden;
  const Element element = linear.element;
  Stream& stream = linear.stream;

  linear.forward(inputs.qkv, weight(at.qkv), n, sizes.qkv_width, h, scratch.qkv);
  split_qkv(stream, element, qkv_shape(keys), scratch.qkv, weight(at.qkv_bias), kept.queries, keys.keys,
            keys.keys + values_after(shape.sequences * keys.tokens, sizes.key_width));
  cuda::attention_forward({.choice = spec.attention,
                           .shape = attention_sizes(sizes, shape),
                           .element = element,
                           .queries = kept.queries,
                           .keys = keys.rows(),
                           .out = inputs.output,
                           .log_sums = kept.log_sums,
                           .scratch = scratch.attention},
                          linear.device, stream);
  linear.forward(inputs.output, weight(at.output), n, h, sizes.query_width, kept.middle);
  sum_over_group(kept.middle, n * h);
  residual_norm(stream, element, kept.middle, kept.middle, kept.input, weight(at.output_bias), n, h,
                norm_weights(at.norm2_gain, at.norm2_bias), kept.statistics2, inputs.up);
  if (kind == LayerKind::experts) expert_mlp().route(inputs.up, kept.experts, scratch.experts);
}

void Layer::mlp_forward(const Forward& pass) const {
  const auto& [keys, kept, inputs, scratch, out, next] = pass;
  const std::int64_t n = shape.rows();
  const std::int64_t h = sizes.hidden;
  const Element element = linear.element;
  Stream& stream = linear.stream;
  if (fuses_gelu(spec)) {
    linear.forward_gelu(inputs.up, weight(at.up), weight(at.up_bias), n, sizes.ffn, h, kept.pre, inputs.down);
  } else {
    linear.forward(inputs.up, weight(at.up), n, sizes.up_width, h, kept.pre);
    activate(stream, element, spec.model.gated, kept.pre, weight(at.up_bias), n, sizes.ffn, inputs.down);
  }
  if (out == nullptr) return;
  linear.forward(inputs.down, weight(at.down), n, h, sizes.ffn, out);
  sum_over_group(out, n * h);
  residual_norm(stream, element, out, out, kept.middle, weight(at.down_bias), n, h, next.weights, next.statistics,
                next.out, next.not_finite);
}

void Layer::forward_part(LayerPart part, const Forward& pass) const {
  if (kind == LayerKind::dense) {
    if (part != LayerPart::attention) return;
    attention_forward(pass);
    return mlp_forward(pass);
  }
  const auto& [keys, kept, inputs, scratch, out, next] = pass;
  switch (part) {
    case LayerPart::attention: return attention_forward(pass);
    case LayerPart::dispatch: return expert_mlp().dispatch(inputs.up, kept.experts, inputs.experts, scratch.experts);
    case LayerPart::experts:
      return expert_mlp().run_experts(inputs.up, kept.experts, inputs.experts, scratch.experts, out);
    case LayerPart::combine: return expert_mlp().combine(scratch.experts);
  }
}

void Layer::complete_forward(const Forward& pass) const {
  if (kind != LayerKind::experts) return;
  const auto& [keys, kept, inputs, scratch, out, next] = pass;
  expert_mlp().add_results(kept.experts, scratch.experts, out);
  residual_norm(linear.stream, linear.element, out, out, kept.middle, nullptr, shape.rows(), sizes.hidden, next.weights,
                next.statistics, next.out, next.not_finite);
}

void Layer::forward(const Forward& pass) const {
  for (const LayerPart part : {LayerPart::attention, LayerPart::dispatch, LayerPart::experts}) forward_part(part, pass);
  if (pass.out == nullptr) return;
  forward_part(LayerPart::combine, pass);
  complete_forward(pass);
}

// In I; see GemmChoice.
void Layer::add_bias_gradient(const Half* gradient, std::int64_t width, std::int64_t bias,
                              float* weight_gradients) const {
  if (bias < 0 || fuses_bias_gradients(spec)) return;
  add_column_sums(linear.stream, linear.element, gradient, shape.rows(), width, weight_gradients + bias);
}

// Writes the gradient of the MLP's input to scratch.hidden.
void Layer::mlp_input_gradient(const Backward& pass) const {
  const auto& [keys, kept, inputs, gradients, scratch, weight_gradients, out, not_finite] = pass;
  const std::int64_t n = shape.rows();
  const std::int64_t h = sizes.hidden;
  add_bias_gradient(gradients.down, h, at.down_bias, weight_gradients);
  if (fuses_gelu(spec)) {
    linear.input_gradient_gelu(gradients.down, weight(at.down), kept.pre, n, h, sizes.ffn, gradients.up);
  } else {
    // With a gate, the gradient of the activation's output goes to the right half of `up`.
    linear.input_gradient(gradients.down, weight(at.down), n, h, sizes.ffn, gradients.up + (sizes.up_width - sizes.ffn),
                          sizes.up_width);
    activate_gradient(linear.stream, linear.element, spec.model.gated, kept.pre, weight(at.up_bias), n, sizes.ffn,
                      gradients.up);
  }
  add_bias_gradient(gradients.up, sizes.up_width, at.up_bias, weight_gradients);
  linear.input_gradient(gradients.up, weight(at.up), n, sizes.up_width, h, scratch.hidden, h);
  sum_over_group(scratch.hidden, n * h);
}

void Layer::attention_input_gradient(const Backward& pass) const {
  const auto& [keys, kept, inputs, gradients, scratch, weight_gradients, out, not_finite] = pass;
  const std::int64_t n = shape.rows();
  const std::int64_t h = sizes.hidden;
  const std::int64_t q = sizes.query_width;
  const std::int64_t all = sizes.qkv_width;
  const Element element = linear.element;
  Stream& stream = linear.stream;
  const auto of = [&pass](std::int64_t offset) { return offset < 0 ? nullptr : pass.weight_gradients + offset; };

  if (kind == LayerKind::experts) {
    expert_mlp().add_input_gradients(kept.experts, gradients.experts, scratch.experts, scratch.hidden);
  }
  norm_gradient(stream, element, scratch.hidden, kept.middle, gradients.down,
                norm_weights(at.norm2_gain, at.norm2_bias), kept.statistics2, n, h, gradients.output, of(at.norm2_gain),
                of(at.norm2_bias));

  // Attention.
  add_bias_gradient(gradients.output, h, at.output_bias, weight_gradients);
  linear.input_gradient(gradients.output, weight(at.output), n, h, q, scratch.attended, q);
  const AttentionSizes attention = attention_sizes(sizes, shape);
  // Without slices, flash attention and libraries write all gradients to the fused rows.
  const bool in_rows = !spec.sliced && spec.attention != AttentionChoice::gemm &&
                       flash_fits(attention, linear.device.compute_capability());
  attention_backward({.choice = spec.attention,
                      .shape = attention,
                      .element = element,
                      .queries = kept.queries,
                      .keys = keys.rows(),
                      .accumulate = spec.sliced,
                      .key_rows_gradient = in_rows ? gradients.qkv + q : nullptr,
                      .out = inputs.output,
                      .log_sums = kept.log_sums,
                      .out_gradient = scratch.attended,
                      .dot_products = scratch.dot_products,
                      .queries_gradient = gradients.qkv,
                      .queries_gradient_stride = all,
                      .scratch = scratch.attention},
                     linear.device, stream);
  const float* const keys_gradient = in_rows ? nullptr : keys.keys_gradient;
  merge_qkv_gradients(stream, element, qkv_shape(keys), keys_gradient,
                      in_rows ? nullptr : keys_gradient + values_after(shape.sequences * keys.tokens, sizes.key_width),
                      gradients.qkv);
  add_bias_gradient(gradients.qkv, all, at.qkv_bias, weight_gradients);
  linear.input_gradient(gradients.qkv, weight(at.qkv), n, all, h, scratch.hidden, h);
  sum_over_group(scratch.hidden, n * h);
  norm_gradient(stream, element, scratch.hidden, kept.input, gradients.output,
                norm_weights(at.norm1_gain, at.norm1_bias), kept.statistics1, n, h, out, of(at.norm1_gain),
                of(at.norm1_bias), not_finite);
}

void Layer::input_gradient_part(LayerPart part, const Backward& pass) const {
  if (kind == LayerKind::dense) {
    if (part != LayerPart::attention) return;
    mlp_input_gradient(pass);
    return attention_input_gradient(pass);
  }
  const auto& [keys, kept, inputs, gradients, scratch, weight_gradients, out, not_finite] = pass;
  switch (part) {
    case LayerPart::attention: return attention_input_gradient(pass);
    case LayerPart::dispatch: return expert_mlp().dispatch_gradient(scratch.experts);
    case LayerPart::experts:
      return expert_mlp().experts_gradient(gradients.down, kept.experts, inputs.experts, gradients.experts,
                                           scratch.experts, scratch.hidden);
    case LayerPart::combine:
      return expert_mlp().combine_gradient(gradients.down, kept.experts, gradients.experts, scratch.experts);
  }
}

void Layer::input_gradient(const Backward& pass) const {
  for (const LayerPart part : {LayerPart::combine, LayerPart::experts, LayerPart::dispatch, LayerPart::attention}) {
    input_gradient_part(part, pass);
  }
}

void Layer::weight_gradient_part(LayerPart part, const LayerInputs& inputs, const LayerGradients& gradients,
                                 const LayerScratch& scratch, float* weight_gradients) const {
  const std::int64_t n = shape.rows();
  const std::int64_t h = sizes.hidden;
  if (part == LayerPart::experts && kind == LayerKind::experts) {
    return expert_mlp().experts_weight_gradient(inputs.up, gradients.down, inputs.experts, gradients.experts,
                                                weight_gradients);
  }
  if (part != LayerPart::attention) return;
  VectorSums owed{};  // gradients of biases that are in bias_sums
  std::size_t count = 0;
  float* sums = scratch.bias_sums;
  const auto of_matrix = [&](const Half* gradient, std::int64_t outputs, const Half* input, std::int64_t width,
                             std::int64_t matrix, std::int64_t bias) {
    float* const into = weight_gradients + matrix;
    if (bias < 0 || sums == nullptr) return linear.weight_gradient(gradient, input, n, outputs, width, into);
    owed.at(count++) =
        linear.weight_and_bias_gradient(gradient, input, n, outputs, width, into, weight_gradients + bias, sums);
    sums += padded(outputs);
  };
  of_matrix(gradients.qkv, sizes.qkv_width, inputs.qkv, h, at.qkv, at.qkv_bias);
  of_matrix(gradients.output, h, inputs.output, sizes.query_width, at.output, at.output_bias);
  if (kind == LayerKind::dense) {
    of_matrix(gradients.up, sizes.up_width, inputs.up, h, at.up, at.up_bias);
    of_matrix(gradients.down, h, inputs.down, sizes.ffn, at.down, at.down_bias);
  }
  add_vectors(linear.stream, owed);
  if (kind == LayerKind::experts) expert_mlp().router_weight_gradient(inputs.up, gradients.experts, weight_gradients);
}

void Layer::weight_gradient(const LayerInputs& inputs, const LayerGradients& gradients, const LayerScratch& scratch,
                            float* weight_gradients) const {
  for (const LayerPart part : {LayerPart::attention, LayerPart::experts}) {
    weight_gradient_part(part, inputs, gradients, scratch, weight_gradients);
  }
}

}  // namespace sluice::kernels::cuda
