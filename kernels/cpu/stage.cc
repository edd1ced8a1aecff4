#include "kernels/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/carver.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/layer.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/initial_weights.h"
#include "kernels/weights.h"
#include "model/errors.h"

namespace sluice::kernels {
namespace {

using namespace cpu;  // NOLINT(google-build-using-namespace): all of it

template <class T>
const T* elements(const std::byte* buffer) {
  return reinterpret_cast<const T*>(buffer);
}
template <class T>
T* elements(std::byte* buffer) {
  return reinterpret_cast<T*>(buffer);
}

template <class T>
class CpuStage final : public Stage {
 public:
  explicit CpuStage(const StageSpec& spec)
      : spec_(spec), sizes_(rank_sizes(spec_)), offsets_(weight_offsets(spec_, sizes_)) {
    use_one_thread();
  }

  const StageSpec& spec() const override { return spec_; }
  int element_bytes() const override { return sizeof(T); }
  std::span<const Parameter> parameters() const override { return offsets_.parameters; }

  StageMemory memory() const override {
    const std::int64_t bytes = offsets_.elements * element_bytes();
    return {.weights = bytes,
            .gradients = bytes,
            .optimizer_state = 2 * bytes,
            .dense_gradients = offsets_.dense_elements * element_bytes()};
  }
  SliceMemory slice_memory(const SliceShape& shape) const override;
  std::int64_t scratch_bytes(const SliceShape& shape) const override {
    Carver<T> carver;
    const OpScratch scratch(carver, *this, shape);
    return carver.bytes();
  }

  void initialise(std::byte* weights, std::uint64_t seed) const override {
    initialise_weights(spec_, offsets_, seed, elements<T>(weights));
  }
  void forward(SliceCall& call) const override;
  void input_gradient(SliceCall& call) const override { gradient(call, false); }
  void weight_gradient(SliceCall& call) const override;
  void backward(SliceCall& call) const override { gradient(call, true); }
  void begin_parts(SliceCall& call, bool forward) const override;
  void run_part(const SliceCall& call, const StagePart& part) const override;
  void end_parts(SliceCall& call, bool forward) const override;

  double squared_norm(const std::byte* gradients) const override {
    return cpu::squared_norm(offsets_, elements<T>(gradients));
  }
  void step(const std::byte* weights, std::byte* new_weights, std::byte* optimizer_state, const std::byte* gradients,
            const OptimizerStep& step) const override {
    optimizer_step(offsets_, step, elements<T>(weights), elements<T>(new_weights), elements<T>(optimizer_state),
                   elements<T>(gradients));
  }

 private:
  // Tensors that the head stores.
  struct Head {
    T* input = nullptr;       // [n, h], of the final norm; until I
    T* statistics = nullptr;  // [n, 2]; until I
    T* normed = nullptr;      // [n, h], until W
    T* logits = nullptr;      // [n, vocab_columns], after F their gradient; until W
  };

  // Part of a slice's buffers that belongs to one layer.
  struct Kept {
    LayerActivations<T> activations;
    LayerInputs<T> inputs;
  };
  struct Gradients {
    T* down = nullptr;  // [n, h]
    LayerGradients<T> others;
    LayerInputs<T> inputs;  // with recomputation
  };

  struct OpScratch {
    OpScratch(Carver<T>& carver, const CpuStage& stage, const SliceShape& shape)
        : layer(carver, stage.sizes_, stage.spec_.contents.expert_layers > 0, shape.rows()) {
      const std::int64_t n = shape.rows();
      const RankSizes& sizes = stage.sizes_;
      if (stage.has_rotary()) {
        cosines = carver.take(shape.tokens * sizes.head_dim / 2);
        sines = carver.take(shape.tokens * sizes.head_dim / 2);
      }
      if (stage.spec_.contents.head) {
        maxima = carver.take(n);
        sums = carver.take(2 * n);
      }
      for (T*& link : chain) link = carver.take(n * sizes.hidden);
      for (const auto& [kind, count] : stage.spec_.contents.by_kind()) {
        if (count == 0) continue;
        OfKind& own = kinds[static_cast<std::size_t>(kind)];
        own.gradients.carve(carver, sizes, kind, n);
        if (!stage.spec_.recompute) continue;
        own.recomputed.activations.carve_rest(carver, sizes, kind, n);
        own.recomputed.inputs.carve(carver, sizes, kind, n);
      }
      if (stage.spec_.recompute) {
        if (!stage.spec_.sliced) {
          keys = carver.take(n * sizes.key_width);
          values = carver.take(n * sizes.key_width);
        }
      }
    }

    LayerScratch<T> layer;
    T* cosines = nullptr;
    T* sines = nullptr;
    T* maxima = nullptr;               // of the logits
    T* sums = nullptr;                 // of their exponentials, then the targets' logits
    T* chain[2] = {nullptr, nullptr};  // gradients of a layer's output and input, alternating
    struct OfKind {
      LayerGradients<T> gradients;  // of one layer, in B
      Kept recomputed;              // of one layer
    };
    std::array<OfKind, 2> kinds;  // by LayerKind
    T* keys = nullptr;            // of that layer, unless they are stored
    T* values = nullptr;
  };

  bool has_rotary() const { return spec_.contents.layers > 0 && spec_.model.positions == 0; }
  bool keeps_keys() const { return spec_.sliced || !spec_.recompute; }

  LayerKind kind_of(int layer) const {
    return layer < spec_.contents.layers - spec_.contents.expert_layers ? LayerKind::dense : LayerKind::experts;
  }
  // Carve the parts of one layer.
  Kept carve_kept(Carver<T>& to_input, Carver<T>& to_weight, int layer, std::int64_t rows) const;
  Gradients carve_gradients(Carver<T>& carver, int layer, std::int64_t rows) const;
  Head carve_head(Carver<T>& to_input, Carver<T>& to_weight, std::int64_t rows) const;
  Kept kept(const SliceCall& call, int layer) const;
  Gradients gradients_of(const SliceCall& call, int layer) const;
  Head head_of(const SliceCall& call) const;  // without tensors in a stage without a head

  Layer<T> layer_of(const SliceCall& call, int layer, const OpScratch& scratch) const {
    return {.kind = kind_of(layer),
            .spec = spec_,
            .sizes = sizes_,
            .at = offsets_.layers[layer],
            .shape = call.shape,
            .weights = elements<T>(call.weights),
            .tensor = call.tensor,
            .experts = call.experts,
            .parts = call.parts,
            .cosines = scratch.cosines,
            .sines = scratch.sines};
  }
  KeysValues<T> keys_values_of(const SliceCall& call, int layer, const OpScratch& scratch, T* qkv_gradient) const;
  const T* head_weights(const SliceCall& call) const {
    return offsets_.head < 0 ? elements<T>(call.embedding) : elements<T>(call.weights) + offsets_.head;
  }

  void embed(const SliceCall& call, T* out) const;
  void embedding_gradient(const SliceCall& call, const T* gradient) const;
  void head_forward(SliceCall& call, const Head& head, const OpScratch& scratch) const;
  void head_input_gradient(const SliceCall& call, const OpScratch& scratch, T* out) const;
  void head_weight_gradient(const SliceCall& call) const;
  void gradient(SliceCall& call, bool weights_too) const;
  // Before and after the layers of an op.
  void begin_forward(const SliceCall& call, const OpScratch& scratch) const;
  void end_forward(SliceCall& call, const OpScratch& scratch) const;
  void begin_gradient(SliceCall& call, const OpScratch& scratch, bool weights_too) const;
  void end_gradient(const SliceCall& call, const OpScratch& scratch, bool weights_too) const;
  void complete_layer(const SliceCall& call, int layer, const OpScratch& scratch) const;
  // Returns the input of a layer in F: of layer `layers`, that of the head or of the next stage.
  T* input_of(const SliceCall& call, int layer) const;
  // Returns where the gradient of a layer's output is written; of layer -1, that of the stage's input.
  T* gradient_of(const SliceCall& call, const OpScratch& scratch, int layer, bool weights_too) const;
  // Returns where it is read: B reads that of the last layer from its input.
  const T* read_gradient_of(const SliceCall& call, const OpScratch& scratch, int layer, bool weights_too) const;

  void compute_rotary_angles(const SliceShape& shape, const OpScratch& scratch) const {
    if (has_rotary()) {
      rotary_angles<T>(shape.context, shape.tokens, sizes_.head_dim, scratch.cosines, scratch.sines);
    }
  }
  void sum_over_group(const SliceCall& call, T* data, std::int64_t count) const {
    if (spec_.tensor_parallel > 1) call.tensor->all_reduce_sum(data, count);
  }

  StageSpec spec_;
  RankSizes sizes_;
  WeightOffsets offsets_;
};

template <class T>
auto CpuStage<T>::carve_kept(Carver<T>& to_input, Carver<T>& to_weight, int layer, std::int64_t rows) const -> Kept {
  Kept out;
  out.activations.carve_input(to_input, sizes_, rows);
  if (spec_.recompute) return out;
  out.activations.carve_rest(to_input, sizes_, kind_of(layer), rows);
  out.inputs.carve(to_weight, sizes_, kind_of(layer), rows);
  return out;
}

template <class T>
auto CpuStage<T>::carve_gradients(Carver<T>& carver, int layer, std::int64_t rows) const -> Gradients {
  Gradients out;
  out.down = carver.take(rows * sizes_.hidden);
  out.others.carve(carver, sizes_, kind_of(layer), rows);
  out.others.down = out.down;
  if (spec_.recompute) out.inputs.carve(carver, sizes_, kind_of(layer), rows);
  return out;
}

template <class T>
auto CpuStage<T>::carve_head(Carver<T>& to_input, Carver<T>& to_weight, std::int64_t rows) const -> Head {
  Head out;
  out.input = to_input.take(rows * sizes_.hidden);
  out.statistics = to_input.take(rows * kNormStatistics);
  out.normed = to_weight.take(rows * sizes_.hidden);
  out.logits = to_weight.take(rows * sizes_.vocab_columns);
  return out;
}

template <class T>
SliceMemory CpuStage<T>::slice_memory(const SliceShape& shape) const {
  const std::int64_t n = shape.rows();
  Carver<T> to_input;
  Carver<T> to_weight;
  Carver<T> gradients;
  for (int layer = 0; layer < spec_.contents.layers; ++layer) {
    carve_kept(to_input, to_weight, layer, n);
    carve_gradients(gradients, layer, n);
  }
  if (spec_.contents.head) carve_head(to_input, to_weight, n);
  const std::int64_t keys_values =
      std::int64_t{2} * spec_.contents.layers * padded(n * sizes_.key_width) * element_bytes();
  return {.to_input_gradient = to_input.bytes(),
          .to_weight_gradient = to_weight.bytes(),
          .output_gradients = gradients.bytes(),
          .keys_values = keeps_keys() ? keys_values : 0,
          .keys_values_gradient = spec_.sliced ? keys_values : 0,
          .boundary = n * sizes_.hidden * element_bytes()};
}

template <class T>
auto CpuStage<T>::kept(const SliceCall& call, int layer) const -> Kept {
  Carver<T> to_input(call.to_input_gradient);
  Carver<T> to_weight(call.to_weight_gradient);
  for (int i = 0; i < layer; ++i) carve_kept(to_input, to_weight, i, call.shape.rows());
  return carve_kept(to_input, to_weight, layer, call.shape.rows());
}

template <class T>
auto CpuStage<T>::gradients_of(const SliceCall& call, int layer) const -> Gradients {
  Carver<T> carver(call.output_gradients);
  for (int i = 0; i < layer; ++i) carve_gradients(carver, i, call.shape.rows());
  return carve_gradients(carver, layer, call.shape.rows());
}

template <class T>
auto CpuStage<T>::head_of(const SliceCall& call) const -> Head {
  if (!spec_.contents.head) return {};
  Carver<T> to_input(call.to_input_gradient);
  Carver<T> to_weight(call.to_weight_gradient);
  for (int i = 0; i < spec_.contents.layers; ++i) carve_kept(to_input, to_weight, i, call.shape.rows());
  return carve_head(to_input, to_weight, call.shape.rows());
}

template <class T>
KeysValues<T> CpuStage<T>::keys_values_of(const SliceCall& call, int layer, const OpScratch& scratch,
                                          T* qkv_gradient) const {
  KeysValues<T> out;
  out.stride = sizes_.key_width;
  out.tokens = spec_.sliced ? call.sequence_tokens : call.shape.tokens;
  const std::int64_t each = padded(call.shape.sequences * out.tokens * sizes_.key_width);
  const std::int64_t at = std::int64_t{2} * layer * each;
  out.keys = keeps_keys() ? elements<T>(call.keys_values) + at : scratch.keys;
  out.values = keeps_keys() ? out.keys + each : scratch.values;
  if (spec_.sliced && call.keys_values_gradient != nullptr) {
    out.keys_gradient = elements<T>(call.keys_values_gradient) + at;
    out.values_gradient = out.keys_gradient + each;
    out.gradient_stride = sizes_.key_width;
  }
  if (!spec_.sliced && qkv_gradient != nullptr) {
    // No other slice adds to them, so they are accumulated directly in the input of the matrix multiplications.
    out.keys_gradient = qkv_gradient + sizes_.query_width;
    out.values_gradient = out.keys_gradient + sizes_.key_width;
    out.gradient_stride = sizes_.qkv_width;
    for (std::int64_t row = 0; row < call.shape.rows(); ++row) {
      std::fill_n(out.keys_gradient + row * sizes_.qkv_width, 2 * sizes_.key_width, T{0});
    }
  }
  return out;
}

template <class T>
void CpuStage<T>::embed(const SliceCall& call, T* out) const {
  const std::int64_t n = call.shape.rows();
  const std::int64_t h = sizes_.hidden;
  const T* const words = elements<T>(call.weights) + offsets_.word;
  for (std::int64_t row = 0; row < n; ++row) {
    const std::int64_t token = call.tokens[row] - sizes_.first_token;
    if (token >= 0 && token < sizes_.vocab_rows) {
      std::copy_n(words + token * h, h, out + row * h);
    } else {
      std::fill_n(out + row * h, h, T{0});
    }
  }
  sum_over_group(call, out, n * h);
  if (offsets_.position < 0) return;
  if (call.shape.context + call.shape.tokens > spec_.model.positions) {
    throw InputError(fmt::format("{}: a slice ends at position {}, but the model has {} learned positions",
                                 spec_.model.name, call.shape.context + call.shape.tokens, spec_.model.positions));
  }
  const T* const positions = elements<T>(call.weights) + offsets_.position + call.shape.context * h;
  for (int sequence = 0; sequence < call.shape.sequences; ++sequence) {
    add<T>(positions, call.shape.tokens * h, out + sequence * call.shape.tokens * h);
  }
}

template <class T>
void CpuStage<T>::embedding_gradient(const SliceCall& call, const T* gradient) const {
  const std::int64_t h = sizes_.hidden;
  T* const words = elements<T>(call.gradients) + offsets_.word;
  for (std::int64_t row = 0; row < call.shape.rows(); ++row) {
    const std::int64_t token = call.tokens[row] - sizes_.first_token;
    if (token >= 0 && token < sizes_.vocab_rows) add<T>(gradient + row * h, h, words + token * h);
  }
  if (offsets_.position < 0) return;
  T* const positions = elements<T>(call.gradients) + offsets_.position + call.shape.context * h;
  for (int sequence = 0; sequence < call.shape.sequences; ++sequence) {
    add<T>(gradient + sequence * call.shape.tokens * h, call.shape.tokens * h, positions);
  }
}

template <class T>
void CpuStage<T>::head_forward(SliceCall& call, const Head& head, const OpScratch& scratch) const {
  const std::int64_t n = call.shape.rows();
  const std::int64_t h = sizes_.hidden;
  const std::int64_t columns = sizes_.vocab_rows;
  const std::int64_t stride = sizes_.vocab_columns;
  const T* const weights = elements<T>(call.weights);
  norm<T>(head.input, weights + offsets_.final_gain, offsets_.final_bias < 0 ? nullptr : weights + offsets_.final_bias,
          spec_.model.rms_norm, n, h, head.statistics, head.normed);
  gemm_nt<T>(n, columns, h, T{1}, head.normed, h, head_weights(call), h, Into::set, head.logits, stride);

  row_maxima<T>(head.logits, stride, n, columns, scratch.maxima);
  if (spec_.tensor_parallel > 1) call.tensor->all_reduce_max(scratch.maxima, n);
  T* const targets = scratch.sums + n;
  const auto target_in = [&](std::int64_t row) { return call.targets[row] - sizes_.first_token; };
  const auto is_here = [columns](std::int64_t target) { return target >= 0 && target < columns; };
  for (std::int64_t row = 0; row < n; ++row) {
    targets[row] = is_here(target_in(row)) ? head.logits[row * stride + target_in(row)] : T{0};
  }
  row_exponentials<T>(head.logits, stride, n, columns, scratch.maxima, scratch.sums);
  sum_over_group(call, scratch.sums, 2 * n);
  double loss = 0;
  for (std::int64_t row = 0; row < n; ++row) {
    loss += static_cast<double>(std::log(scratch.sums[row]) + (scratch.maxima[row] - targets[row]));
  }
  call.loss = loss;

  const T scale = static_cast<T>(call.loss_scale);
  scale_rows<T>(head.logits, stride, n, columns, scratch.sums, scale);
  for (std::int64_t row = 0; row < n; ++row) {
    if (is_here(target_in(row))) head.logits[row * stride + target_in(row)] -= scale;
  }
}

template <class T>
void CpuStage<T>::head_input_gradient(const SliceCall& call, const OpScratch& scratch, T* out) const {
  const std::int64_t n = call.shape.rows();
  const std::int64_t h = sizes_.hidden;
  const Head head = head_of(call);
  gemm_nn<T>(n, h, sizes_.vocab_rows, head.logits, sizes_.vocab_columns, head_weights(call), h, Into::set,
             scratch.layer.hidden, h);
  sum_over_group(call, scratch.layer.hidden, n * h);
  T* const gradients = elements<T>(call.gradients);
  const T* const no_residual = nullptr;
  norm_gradient<T>(scratch.layer.hidden, head.input, elements<T>(call.weights) + offsets_.final_gain, head.statistics,
                   no_residual, spec_.model.rms_norm, n, h, scratch.layer.sums, out, gradients + offsets_.final_gain,
                   offsets_.final_bias < 0 ? nullptr : gradients + offsets_.final_bias);
}

template <class T>
void CpuStage<T>::head_weight_gradient(const SliceCall& call) const {
  const Head head = head_of(call);
  T* const gradient =
      offsets_.head < 0 ? elements<T>(call.embedding_gradient) : elements<T>(call.gradients) + offsets_.head;
  const std::int64_t h = sizes_.hidden;
  gemm_tn<T>(sizes_.vocab_rows, h, call.shape.rows(), head.logits, sizes_.vocab_columns, head.normed, h, gradient, h);
}

template <class T>
T* CpuStage<T>::input_of(const SliceCall& call, int layer) const {
  if (layer < spec_.contents.layers) return kept(call, layer).activations.input;
  return spec_.contents.head ? head_of(call).input : elements<T>(call.output);
}

template <class T>
T* CpuStage<T>::gradient_of(const SliceCall& call, const OpScratch& scratch, int layer, bool weights_too) const {
  if (layer < 0 && !spec_.contents.embedding) return elements<T>(call.input_gradient);
  if (layer < 0 || weights_too) return scratch.chain[layer & 1];
  return gradients_of(call, layer).down;
}

template <class T>
const T* CpuStage<T>::read_gradient_of(const SliceCall& call, const OpScratch& scratch, int layer,
                                       bool weights_too) const {
  const bool last = layer == spec_.contents.layers - 1;
  if (last && layer >= 0 && weights_too && !spec_.contents.head) return elements<T>(call.output_gradient);
  return gradient_of(call, scratch, layer, weights_too);
}

template <class T>
void CpuStage<T>::begin_forward(const SliceCall& call, const OpScratch& scratch) const {
  compute_rotary_angles(call.shape, scratch);
  if (spec_.contents.embedding) {
    embed(call, input_of(call, 0));
  } else {
    std::copy_n(elements<T>(call.input), call.shape.rows() * sizes_.hidden, input_of(call, 0));
  }
}

template <class T>
void CpuStage<T>::end_forward(SliceCall& call, const OpScratch& scratch) const {
  if (const Head head = head_of(call); head.logits != nullptr) head_forward(call, head, scratch);
}

template <class T>
void CpuStage<T>::begin_gradient(SliceCall& call, const OpScratch& scratch, bool weights_too) const {
  compute_rotary_angles(call.shape, scratch);
  call.recompute_ns = 0;
  const int last = spec_.contents.layers - 1;
  if (spec_.contents.head) {
    head_input_gradient(call, scratch, gradient_of(call, scratch, last, weights_too));
  } else if (!weights_too || last < 0) {
    std::copy_n(elements<T>(call.output_gradient), call.shape.rows() * sizes_.hidden,
                gradient_of(call, scratch, last, weights_too));
  }
}

template <class T>
void CpuStage<T>::end_gradient(const SliceCall& call, const OpScratch& scratch, bool weights_too) const {
  if (spec_.contents.embedding) embedding_gradient(call, read_gradient_of(call, scratch, -1, weights_too));
  // Last, as W comes after I: both may add to the same word embedding.
  if (weights_too && spec_.contents.head) head_weight_gradient(call);
}

template <class T>
void CpuStage<T>::forward(SliceCall& call) const {
  Carver<T> carver(call.scratch);
  const OpScratch scratch(carver, *this, call.shape);
  begin_forward(call, scratch);
  for (int i = 0; i < spec_.contents.layers; ++i) {
    Kept layer = kept(call, i);
    if (spec_.recompute) {
      T* const input = layer.activations.input;
      layer = scratch.kinds[static_cast<std::size_t>(kind_of(i))].recomputed;
      layer.activations.input = input;
    }
    if (call.parts != nullptr) call.parts->begin(PartPass::forward, i);
    layer_of(call, i, scratch)
        .forward({keys_values_of(call, i, scratch, nullptr), layer.activations, layer.inputs, scratch.layer,
                  input_of(call, i + 1)});
  }
  end_forward(call, scratch);
}

template <class T>
void CpuStage<T>::gradient(SliceCall& call, bool weights_too) const {
  Carver<T> carver(call.scratch);
  const OpScratch scratch(carver, *this, call.shape);
  begin_gradient(call, scratch, weights_too);
  for (int i = spec_.contents.layers - 1; i >= 0; --i) {
    const Layer<T> layer = layer_of(call, i, scratch);
    Kept saved = kept(call, i);
    const auto& of_kind = scratch.kinds[static_cast<std::size_t>(kind_of(i))];
    LayerGradients<T> gradients = weights_too ? of_kind.gradients : gradients_of(call, i).others;
    gradients.down = read_gradient_of(call, scratch, i, weights_too);
    const KeysValues<T> keys_values = keys_values_of(call, i, scratch, gradients.qkv);
    if (spec_.recompute) {
      const auto begin = std::chrono::steady_clock::now();
      T* const input = saved.activations.input;
      saved = of_kind.recomputed;
      saved.activations.input = input;
      if (!weights_too) saved.inputs = gradients_of(call, i).inputs;
      layer.forward({keys_values, saved.activations, saved.inputs, scratch.layer, nullptr});
      call.recompute_ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
    }
    if (call.parts != nullptr) call.parts->begin(PartPass::input_gradient, spec_.contents.layers - 1 - i);
    layer.input_gradient({keys_values, saved.activations, saved.inputs, gradients, scratch.layer,
                          elements<T>(call.gradients), gradient_of(call, scratch, i - 1, weights_too)});
    if (weights_too) layer.weight_gradient(saved.inputs, gradients, elements<T>(call.gradients));
  }
  end_gradient(call, scratch, weights_too);
}

template <class T>
void CpuStage<T>::begin_parts(SliceCall& call, bool forward) const {
  Carver<T> carver(call.scratch);
  const OpScratch scratch(carver, *this, call.shape);
  forward ? begin_forward(call, scratch) : begin_gradient(call, scratch, call.output_gradients == nullptr);
}

// Finds the tensors of the layer again for every part, as they are functions of the call.
template <class T>
void CpuStage<T>::run_part(const SliceCall& call, const StagePart& part) const {
  Carver<T> carver(call.scratch);
  const OpScratch scratch(carver, *this, call.shape);
  const Layer<T> layer = layer_of(call, part.layer, scratch);
  const Kept saved = kept(call, part.layer);
  if (part.pass == PartPass::forward) {
    if (part.part == LayerPart::attention && part.layer > 0) complete_layer(call, part.layer - 1, scratch);
    return layer.forward_part(part.part, {keys_values_of(call, part.layer, scratch, nullptr), saved.activations,
                                          saved.inputs, scratch.layer, input_of(call, part.layer + 1)});
  }
  const bool weights_too = call.output_gradients == nullptr;
  LayerGradients<T> gradients = weights_too ? scratch.kinds[static_cast<std::size_t>(kind_of(part.layer))].gradients
                                            : gradients_of(call, part.layer).others;
  gradients.down = read_gradient_of(call, scratch, part.layer, weights_too);
  if (part.pass == PartPass::weight_gradient) {
    return layer.weight_gradient_part(part.part, saved.inputs, gradients, elements<T>(call.gradients));
  }
  T* const zeroed = part.part == LayerPart::attention ? gradients.qkv : nullptr;
  layer.input_gradient_part(
      part.part, {keys_values_of(call, part.layer, scratch, zeroed), saved.activations, saved.inputs, gradients,
                  scratch.layer, elements<T>(call.gradients), gradient_of(call, scratch, part.layer - 1, weights_too)});
}

template <class T>
void CpuStage<T>::complete_layer(const SliceCall& call, int layer, const OpScratch& scratch) const {
  const Kept saved = kept(call, layer);
  layer_of(call, layer, scratch)
      .complete_forward({keys_values_of(call, layer, scratch, nullptr), saved.activations, saved.inputs, scratch.layer,
                         input_of(call, layer + 1)});
}

template <class T>
void CpuStage<T>::end_parts(SliceCall& call, bool forward) const {
  Carver<T> carver(call.scratch);
  const OpScratch scratch(carver, *this, call.shape);
  if (!forward) return end_gradient(call, scratch, call.output_gradients == nullptr);
  if (spec_.contents.layers > 0) complete_layer(call, spec_.contents.layers - 1, scratch);
  end_forward(call, scratch);
}

template <class T>
void CpuStage<T>::weight_gradient(SliceCall& call) const {
  Carver<T> carver(call.scratch);
  const OpScratch scratch(carver, *this, call.shape);
  for (int i = spec_.contents.layers - 1; i >= 0; --i) {
    const Gradients gradients = gradients_of(call, i);
    const LayerInputs<T> inputs = spec_.recompute ? gradients.inputs : kept(call, i).inputs;
    layer_of(call, i, scratch).weight_gradient(inputs, gradients.others, elements<T>(call.gradients));
  }
  if (spec_.contents.head) head_weight_gradient(call);
}

}  // namespace

std::unique_ptr<Stage> make_cpu_stage(const StageSpec& spec, Precision precision) {
  if (precision == Precision::float64) return std::make_unique<CpuStage<double>>(spec);
  return std::make_unique<CpuStage<float>>(spec);
}

}  // namespace sluice::kernels
