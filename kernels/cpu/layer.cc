#include "kernels/cpu/layer.h"

#include "kernels/cpu/gemm.h"

namespace sluice::kernels::cpu {

template <class T>
void LayerActivations<T>::carve_input(Carver<T>& carver, const RankSizes& sizes, std::int64_t rows) {
  input = carver.take(rows * sizes.hidden);
}

template <class T>
void LayerActivations<T>::carve_rest(Carver<T>& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows) {
  statistics1 = carver.take(rows * kNormStatistics);
  queries = carver.take(rows * sizes.query_width);
  log_sums = carver.take(rows * sizes.heads);
  middle = carver.take(rows * sizes.hidden);
  statistics2 = carver.take(rows * kNormStatistics);
  if (kind == LayerKind::experts) return experts.carve(carver, sizes.experts, rows, sizes.tensor_parallel);
  pre = carver.take(rows * sizes.up_width);
}

template <class T>
void LayerInputs<T>::carve(Carver<T>& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows) {
  qkv = carver.take(rows * sizes.hidden);
  output = carver.take(rows * sizes.query_width);
  up = carver.take(rows * sizes.hidden);
  if (kind == LayerKind::experts) return experts.carve(carver, sizes, rows);
  down = carver.take(rows * sizes.ffn);
}

template <class T>
void LayerGradients<T>::carve(Carver<T>& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows) {
  qkv = carver.take(rows * sizes.qkv_width);
  output = carver.take(rows * sizes.hidden);
  if (kind == LayerKind::experts) return experts.carve(carver, sizes, rows);
  up = carver.take(rows * sizes.up_width);
}

template <class T>
LayerScratch<T>::LayerScratch(Carver<T>& carver, const RankSizes& sizes, bool has_experts, std::int64_t rows)
    : attention(carver),
      qkv(carver.take(rows * sizes.qkv_width)),
      hidden(carver.take(rows * sizes.hidden)),
      attended(carver.take(rows * sizes.query_width)),
      sums(carver.take(2 * sizes.hidden)) {
  if (has_experts) experts = ExpertScratch<T>(carver, sizes, rows);
}

template <class T>
HeadRows Layer<T>::head_rows(std::int64_t heads) const {
  return {.rows = shape.rows(), .tokens = shape.tokens, .heads = heads, .head_dim = sizes.head_dim};
}

template <class T>
void Layer<T>::write_keys(const KeysValues<T>& keys_values, const T* from, std::int64_t stride, const T* bias,
                          bool rotates, T* rows) const {
  HeadRows of_sequence = head_rows(sizes.kv_heads);
  of_sequence.rows = shape.tokens;
  for (int sequence = 0; sequence < shape.sequences; ++sequence) {
    apply_rotary<T>(of_sequence, from + sequence * shape.tokens * stride, stride, bias, rotates ? cosines : nullptr,
                    sines, false, rows + keys_values.row(sequence, shape.context) * keys_values.stride,
                    keys_values.stride);
  }
}

template <class T>
void Layer<T>::read_key_gradients(const KeysValues<T>& keys_values, const T* rows, bool rotates, T* to,
                                  std::int64_t stride) const {
  HeadRows of_sequence = head_rows(sizes.kv_heads);
  of_sequence.rows = shape.tokens;
  const T* const no_bias = nullptr;
  for (int sequence = 0; sequence < shape.sequences; ++sequence) {
    apply_rotary<T>(of_sequence, rows + keys_values.row(sequence, shape.context) * keys_values.gradient_stride,
                    keys_values.gradient_stride, no_bias, rotates ? cosines : nullptr, sines, true,
                    to + sequence * shape.tokens * stride, stride);
  }
}

template <class T>
void Layer<T>::sum_over_group(T* data, std::int64_t count) const {
  if (spec.tensor_parallel > 1) tensor->all_reduce_sum(data, count);
}

template <class T>
void Layer<T>::attention_forward(const Forward& pass) const {
  const auto& [keys_values, kept, inputs, scratch, out] = pass;
  const std::int64_t n = shape.rows();
  const std::int64_t h = sizes.hidden;
  const std::int64_t q = sizes.query_width;
  const std::int64_t w = sizes.key_width;
  const std::int64_t all = sizes.qkv_width;
  const bool rms = spec.model.rms_norm;

  norm<T>(kept.input, weight(at.norm1_gain), weight(at.norm1_bias), rms, n, h, kept.statistics1, inputs.qkv);
  gemm_nt<T>(n, all, h, T{1}, inputs.qkv, h, weight(at.qkv), h, Into::set, scratch.qkv, all);
  const T* const bias = weight(at.qkv_bias);
  const auto bias_from = [bias](std::int64_t column) { return bias == nullptr ? nullptr : bias + column; };
  apply_rotary<T>(head_rows(sizes.heads), scratch.qkv, all, bias, cosines, sines, false, kept.queries, q);
  write_keys(keys_values, scratch.qkv + q, all, bias_from(q), true, keys_values.keys);
  write_keys(keys_values, scratch.qkv + q + w, all, bias_from(q + w), false, keys_values.values);
  attention<T>(attention_sizes(sizes, shape), kept.queries, keys_values, scratch.attention, inputs.output,
               kept.log_sums);
  gemm_nt<T>(n, h, q, T{1}, inputs.output, q, weight(at.output), q, Into::set, kept.middle, h);
  sum_over_group(kept.middle, n * h);
  add_bias_residual<T>(weight(at.output_bias), kept.input, n, h, kept.middle);

  norm<T>(kept.middle, weight(at.norm2_gain), weight(at.norm2_bias), rms, n, h, kept.statistics2, inputs.up);
  if (kind == LayerKind::experts) expert_mlp().route(inputs.up, kept.experts);
}

template <class T>
void Layer<T>::mlp_forward(const Forward& pass) const {
  const auto& [keys_values, kept, inputs, scratch, out] = pass;
  const std::int64_t n = shape.rows();
  const std::int64_t h = sizes.hidden;
  gemm_nt<T>(n, sizes.up_width, h, T{1}, inputs.up, h, weight(at.up), h, Into::set, kept.pre, sizes.up_width);
  if (spec.model.gated) {
    add_bias_swiglu<T>(kept.pre, weight(at.up_bias), n, sizes.ffn, inputs.down);
  } else {
    add_bias_gelu<T>(kept.pre, weight(at.up_bias), n, sizes.ffn, inputs.down);
  }
  if (out == nullptr) return;
  gemm_nt<T>(n, h, sizes.ffn, T{1}, inputs.down, sizes.ffn, weight(at.down), sizes.ffn, Into::set, out, h);
  sum_over_group(out, n * h);
  add_bias_residual<T>(weight(at.down_bias), kept.middle, n, h, out);
}

template <class T>
void Layer<T>::forward_part(LayerPart part, const Forward& pass) const {
  const auto& [keys_values, kept, inputs, scratch, out] = pass;
  if (kind == LayerKind::dense) {
    if (part != LayerPart::attention) return;
    attention_forward(pass);
    return mlp_forward(pass);
  }
  switch (part) {
    case LayerPart::attention: return attention_forward(pass);
    case LayerPart::dispatch: return expert_mlp().dispatch(inputs.up, kept.experts, inputs.experts, scratch.experts);
    case LayerPart::experts:
      return expert_mlp().run_experts(inputs.up, kept.experts, inputs.experts, scratch.experts, out);
    case LayerPart::combine: return expert_mlp().combine(kept.experts, scratch.experts);
  }
}

template <class T>
void Layer<T>::complete_forward(const Forward& pass) const {
  if (kind != LayerKind::experts) return;
  expert_mlp().add_results(pass.kept.experts, pass.scratch.experts, pass.out);
  add<T>(pass.kept.middle, shape.rows() * sizes.hidden, pass.out);
}

template <class T>
void Layer<T>::forward(const Forward& pass) const {
  for (const LayerPart part : {LayerPart::attention, LayerPart::dispatch, LayerPart::experts}) {
    forward_part(part, pass);
    end(part);
  }
  if (pass.out == nullptr) return;
  forward_part(LayerPart::combine, pass);
  complete_forward(pass);
  end(LayerPart::combine);
}

// Writes the gradient of the MLP's input to scratch.hidden.
template <class T>
void Layer<T>::mlp_input_gradient(const Backward& pass) const {
  const auto& [keys_values, kept, inputs, gradients, scratch, weight_gradients, out] = pass;
  const std::int64_t n = shape.rows();
  const std::int64_t h = sizes.hidden;
  // With a gate, the gradient of the activation's output goes to the right half of `up`.
  if (at.down_bias >= 0) add_column_sums<T>(gradients.down, n, h, weight_gradients + at.down_bias);
  gemm_nn<T>(n, sizes.ffn, h, gradients.down, h, weight(at.down), sizes.ffn, Into::set,
             gradients.up + (sizes.up_width - sizes.ffn), sizes.up_width);
  if (spec.model.gated) {
    swiglu_gradient<T>(kept.pre, n, sizes.ffn, gradients.up);
  } else {
    gelu_gradient<T>(kept.pre, n * sizes.ffn, gradients.up);
  }
  if (at.up_bias >= 0) add_column_sums<T>(gradients.up, n, sizes.up_width, weight_gradients + at.up_bias);
  gemm_nn<T>(n, h, sizes.up_width, gradients.up, sizes.up_width, weight(at.up), h, Into::set, scratch.hidden, h);
  sum_over_group(scratch.hidden, n * h);
}

template <class T>
void Layer<T>::attention_input_gradient(const Backward& pass) const {
  const auto& [keys_values, kept, inputs, gradients, scratch, weight_gradients, out] = pass;
  const std::int64_t n = shape.rows();
  const std::int64_t h = sizes.hidden;
  const std::int64_t q = sizes.query_width;
  const std::int64_t w = sizes.key_width;
  const std::int64_t all = sizes.qkv_width;
  const bool rms = spec.model.rms_norm;
  const auto of = [&pass](std::int64_t offset) { return offset < 0 ? nullptr : pass.weight_gradients + offset; };

  if (kind == LayerKind::experts) {
    expert_mlp().add_input_gradients(kept.experts, gradients.experts, scratch.experts, scratch.hidden);
  }
  norm_gradient<T>(scratch.hidden, kept.middle, weight(at.norm2_gain), kept.statistics2, gradients.down, rms, n, h,
                   scratch.sums, gradients.output, of(at.norm2_gain), of(at.norm2_bias));

  // Attention.
  if (at.output_bias >= 0) add_column_sums<T>(gradients.output, n, h, of(at.output_bias));
  gemm_nn<T>(n, q, h, gradients.output, h, weight(at.output), q, Into::set, scratch.attended, q);
  attention_gradient<T>(attention_sizes(sizes, shape), kept.queries, keys_values, inputs.output, kept.log_sums,
                        scratch.attended, scratch.attention, gradients.qkv, all);
  read_key_gradients(keys_values, keys_values.keys_gradient, true, gradients.qkv + q, all);
  if (keys_values.values_gradient != gradients.qkv + q + w) {
    read_key_gradients(keys_values, keys_values.values_gradient, false, gradients.qkv + q + w, all);
  }
  const T* const no_bias = nullptr;
  if (cosines != nullptr) {
    apply_rotary<T>(head_rows(sizes.heads), gradients.qkv, all, no_bias, cosines, sines, true, gradients.qkv, all);
  }
  if (at.qkv_bias >= 0) add_column_sums<T>(gradients.qkv, n, all, of(at.qkv_bias));
  gemm_nn<T>(n, h, all, gradients.qkv, all, weight(at.qkv), h, Into::set, scratch.hidden, h);
  sum_over_group(scratch.hidden, n * h);
  norm_gradient<T>(scratch.hidden, kept.input, weight(at.norm1_gain), kept.statistics1, gradients.output, rms, n, h,
                   scratch.sums, out, of(at.norm1_gain), of(at.norm1_bias));
}

template <class T>
void Layer<T>::input_gradient_part(LayerPart part, const Backward& pass) const {
  const auto& [keys_values, kept, inputs, gradients, scratch, weight_gradients, out] = pass;
  if (kind == LayerKind::dense) {
    if (part != LayerPart::attention) return;
    mlp_input_gradient(pass);
    return attention_input_gradient(pass);
  }
  switch (part) {
    case LayerPart::attention: return attention_input_gradient(pass);
    case LayerPart::dispatch: return expert_mlp().dispatch_gradient(kept.experts, scratch.experts);
    case LayerPart::experts:
      return expert_mlp().experts_gradient(gradients.down, kept.experts, inputs.experts, gradients.experts,
                                           scratch.experts, scratch.hidden);
    case LayerPart::combine:
      return expert_mlp().combine_gradient(gradients.down, kept.experts, gradients.experts, scratch.experts);
  }
}

template <class T>
void Layer<T>::input_gradient(const Backward& pass) const {
  for (const LayerPart part : {LayerPart::combine, LayerPart::experts, LayerPart::dispatch, LayerPart::attention}) {
    input_gradient_part(part, pass);
    end(part);
  }
}

template <class T>
void Layer<T>::weight_gradient_part(LayerPart part, const LayerInputs<T>& inputs, const LayerGradients<T>& gradients,
                                    T* weight_gradients) const {
  const std::int64_t n = shape.rows();
  const std::int64_t h = sizes.hidden;
  const std::int64_t q = sizes.query_width;
  const std::int64_t all = sizes.qkv_width;
  if (part == LayerPart::experts && kind == LayerKind::experts) {
    return expert_mlp().experts_weight_gradient(inputs.up, gradients.down, inputs.experts, gradients.experts,
                                                weight_gradients);
  }
  if (part != LayerPart::attention) return;
  gemm_tn<T>(all, h, n, gradients.qkv, all, inputs.qkv, h, weight_gradients + at.qkv, h);
  gemm_tn<T>(h, q, n, gradients.output, h, inputs.output, q, weight_gradients + at.output, q);
  if (kind == LayerKind::experts) {
    return expert_mlp().router_weight_gradient(inputs.up, gradients.experts, weight_gradients);
  }
  gemm_tn<T>(sizes.up_width, h, n, gradients.up, sizes.up_width, inputs.up, h, weight_gradients + at.up, h);
  gemm_tn<T>(h, sizes.ffn, n, gradients.down, h, inputs.down, sizes.ffn, weight_gradients + at.down, sizes.ffn);
}

template <class T>
void Layer<T>::weight_gradient(const LayerInputs<T>& inputs, const LayerGradients<T>& gradients,
                               T* weight_gradients) const {
  for (const LayerPart part : {LayerPart::attention, LayerPart::experts}) {
    weight_gradient_part(part, inputs, gradients, weight_gradients);
  }
}

#define SLUICE_INSTANTIATE(T)          \
  template struct LayerActivations<T>; \
  template struct LayerInputs<T>;      \
  template struct LayerGradients<T>;   \
  template struct LayerScratch<T>;     \
  template struct Layer<T>;
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(double)
#undef SLUICE_INSTANTIATE

}  // namespace sluice::kernels::cpu
