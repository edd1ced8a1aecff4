#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/layer.h"
#include "kernels/stage.h"
#include "kernels/weights.h"
#include "model/errors.h"

namespace sluice::kernels {

// Implements the ops of Stage and its memory plan on a backend (kernels/layer.h), which is constructed for each op from
// a Backend::Config of the stage.
template <class Backend>
class LayeredStage : public Stage {
 public:
  using Number = typename Backend::Number;
  using Real = typename Backend::Real;

  explicit LayeredStage(const StageSpec& spec, typename Backend::Config config = {})
      : spec_(spec), sizes_(rank_sizes(spec_)), offsets_(weight_offsets(spec_, sizes_)), config_(config) {}

  const StageSpec& spec() const override { return spec_; }
  int element_bytes() const override { return sizeof(Number); }
  std::span<const Parameter> parameters() const override { return offsets_.parameters; }

  StageMemory memory() const override {
    const std::int64_t bytes = offsets_.elements * kRealBytes;
    return {.weights = offsets_.elements * kNumberBytes,
            .gradients = bytes,
            .optimizer_state = Backend::kOptimizerStates * bytes,
            .dense_gradients = offsets_.dense_elements * kRealBytes};
  }
  SliceMemory slice_memory(const SliceShape& shape) const override {
    const std::int64_t n = shape.rows();
    Carver to_input;
    Carver to_weight;
    Carver gradients;
    for (int layer = 0; layer < spec_.contents.layers; ++layer) {
      carve_kept(to_input, to_weight, layer, n);
      carve_gradients(gradients, layer, n);
    }
    if (spec_.contents.head) carve_head(to_input, to_weight, n);
    const std::int64_t keys_values = std::int64_t{2} * spec_.contents.layers * values_after(n, sizes_.key_width);
    return {.to_input_gradient = to_input.bytes(),
            .to_weight_gradient = to_weight.bytes(),
            .output_gradients = gradients.bytes(),
            .keys_values = keeps_keys() ? keys_values * kNumberBytes : 0,
            .keys_values_gradient = spec_.sliced ? keys_values * kRealBytes : 0,
            .boundary = n * sizes_.hidden * kNumberBytes};
  }
  std::int64_t scratch_bytes(const SliceShape& shape) const override {
    Carver carver;
    const Scratch scratch(carver, *this, shape);
    return carver.bytes();
  }

  void initialise(std::byte* weights, std::uint64_t seed) const override {
    initialise_weights(spec_, offsets_, seed, reals(weights));
  }

  void forward(SliceCall& call) const override {
    check_positions(call.shape);
    const Op op(*this, call);
    begin_forward(op);
    for (int i = 0; i < spec_.contents.layers; ++i) {
      const Kept of_layer = kept_or_recomputed(op, i);
      if (call.parts != nullptr) call.parts->begin(PartPass::forward, i);
      layer_of(op, i).forward(
          {keys_of(op, i), of_layer.activations, of_layer.inputs, input_of(op, i + 1), norm_of(op, i + 1)});
    }
    end_forward(op, call);
  }
  void input_gradient(SliceCall& call) const override { gradient(call, false); }
  void backward(SliceCall& call) const override { gradient(call, true); }
  void weight_gradient(SliceCall& call) const override {
    const Op op(*this, call);
    for (int i = spec_.contents.layers - 1; i >= 0; --i) {
      const Gradients gradients = gradients_of(call, i);
      const LayerInputs<Backend> inputs = spec_.recompute ? gradients.inputs : kept(call, i).inputs;
      layer_of(op, i).weight_gradient(inputs, gradients.others, reals(call.gradients));
    }
    if (spec_.contents.head) head_weight_gradient(op);
  }

  void begin_parts(SliceCall& call, bool forward) const override {
    if (forward) check_positions(call.shape);
    const Op op(*this, call);
    forward ? begin_forward(op) : begin_gradient(op, call, call.output_gradients == nullptr);
  }
  // Finds the tensors of the layer again for every part, as they are functions of the call.
  void run_part(const SliceCall& call, const StagePart& part) const override {
    const Op op(*this, call);
    const int i = part.layer;
    const Layer<Backend> layer = layer_of(op, i);
    const Kept saved = kept(call, i);
    if (part.pass == PartPass::forward) {
      if (part.part == LayerPart::attention && i > 0) complete_layer(op, i - 1);
      return layer.forward_part(
          part.part, {keys_of(op, i), saved.activations, saved.inputs, input_of(op, i + 1), norm_of(op, i + 1)});
    }
    const bool weights_too = call.output_gradients == nullptr;
    const LayerGradients<Backend> gradients = layer_gradients(op, i, weights_too);
    if (part.pass == PartPass::weight_gradient) {
      return layer.weight_gradient_part(part.part, saved.inputs, gradients, reals(call.gradients));
    }
    layer.input_gradient_part(part.part,
                              {keys_of(op, i), saved.activations, saved.inputs, gradients, reals(call.gradients),
                               gradient_of(op, i - 1, weights_too), flag_of(call, i)});
  }
  void end_parts(SliceCall& call, bool forward) const override {
    const Op op(*this, call);
    if (!forward) return end_gradient(op, call.output_gradients == nullptr);
    if (spec_.contents.layers > 0) complete_layer(op, spec_.contents.layers - 1);
    end_forward(op, call);
  }

 protected:
  static const Number* numbers(const std::byte* buffer) { return reinterpret_cast<const Number*>(buffer); }
  static Number* numbers(std::byte* buffer) { return reinterpret_cast<Number*>(buffer); }
  static const Real* reals(const std::byte* buffer) { return reinterpret_cast<const Real*>(buffer); }
  static Real* reals(std::byte* buffer) { return reinterpret_cast<Real*>(buffer); }

  const RankSizes& sizes() const { return sizes_; }
  const WeightOffsets& offsets() const { return offsets_; }

 private:
  static constexpr std::int64_t kNumberBytes = sizeof(Number);
  static constexpr std::int64_t kRealBytes = sizeof(Real);
  using Norm = LayerNorm<Backend>;

  // Tensors that the head stores.
  struct Head {
    Number* input = nullptr;     // [n, h], of the final norm; until I
    Real* statistics = nullptr;  // [n, 2]; until I
    Number* normed = nullptr;    // [n, h], until W
    Number* logits = nullptr;    // [n, vocab_columns], after F their gradient; until W
  };

  // Part of a slice's buffers that belongs to one layer.
  struct Kept {
    LayerActivations<Backend> activations;
    LayerInputs<Backend> inputs;
  };
  struct Gradients {
    Number* down = nullptr;  // [n, h]
    LayerGradients<Backend> others;
    LayerInputs<Backend> inputs;  // with recomputation
  };

  struct Scratch {
    struct OfKind {
      LayerGradients<Backend> gradients;  // of one layer, in B
      Kept recomputed;                    // of one layer
    };
    Scratch(Carver& carver, const LayeredStage& stage, const SliceShape& shape)
        : own(carver, stage.spec_, stage.sizes_, shape) {
      const std::int64_t n = shape.rows();
      const StageSpec& spec = stage.spec_;
      const RankSizes& sizes = stage.sizes_;
      layer.carve(carver, sizes, spec.contents.expert_layers > 0, n);
      for (Number*& link : chain) link = carver.take<Number>(n * sizes.hidden);
      for (const auto& [kind, count] : spec.contents.by_kind()) {
        if (count == 0) continue;
        OfKind& of_kind = kinds[static_cast<std::size_t>(kind)];
        of_kind.gradients.carve(carver, sizes, kind, n);
        if (!spec.recompute) continue;
        of_kind.recomputed.activations.carve_rest(carver, sizes, kind, n);
        of_kind.recomputed.inputs.carve(carver, sizes, kind, n);
      }
      if (!stage.keeps_keys()) keys = carver.take<Number>(2 * values_after(n, sizes.key_width));
    }

    typename Backend::Scratch own;
    LayerScratch<Backend> layer;
    Number* chain[2] = {nullptr, nullptr};  // gradients of a layer's output and input, alternating
    std::array<OfKind, 2> kinds;            // by LayerKind
    Number* keys = nullptr;                 // and values, of the recomputed layer, unless they are stored
  };

  // What the functions of one op share.
  struct Op {
    Op(const LayeredStage& stage, const SliceCall& of)
        : call(of),
          carver(of.scratch),
          scratch(carver, stage, of.shape),
          b(stage.config_, stage.spec_, stage.sizes_, of, scratch.own) {}
    const SliceCall& call;
    Carver carver;
    Scratch scratch;
    Backend b;
  };

  bool keeps_keys() const { return spec_.sliced || !spec_.recompute; }
  LayerKind kind_of(int layer) const {
    return layer < spec_.contents.layers - spec_.contents.expert_layers ? LayerKind::dense : LayerKind::experts;
  }

  // Carve the parts of one layer.
  Kept carve_kept(Carver& to_input, Carver& to_weight, int layer, std::int64_t rows) const {
    Kept out;
    out.activations.carve_input(to_input, sizes_, rows);
    if (spec_.recompute) return out;
    out.activations.carve_rest(to_input, sizes_, kind_of(layer), rows);
    out.inputs.carve(to_weight, sizes_, kind_of(layer), rows);
    return out;
  }
  Gradients carve_gradients(Carver& carver, int layer, std::int64_t rows) const {
    Gradients out;
    out.down = carver.take<Number>(rows * sizes_.hidden);
    out.others.carve(carver, sizes_, kind_of(layer), rows);
    out.others.down = out.down;
    if (spec_.recompute) out.inputs.carve(carver, sizes_, kind_of(layer), rows);
    return out;
  }
  Head carve_head(Carver& to_input, Carver& to_weight, std::int64_t rows) const {
    Head out;
    out.input = to_input.take<Number>(rows * sizes_.hidden);
    out.statistics = to_input.take<Real>(rows * kNormStatistics);
    out.normed = to_weight.take<Number>(rows * sizes_.hidden);
    out.logits = to_weight.take<Number>(rows * sizes_.vocab_columns);
    return out;
  }
  Kept kept(const SliceCall& call, int layer) const {
    Carver to_input(call.to_input_gradient);
    Carver to_weight(call.to_weight_gradient);
    for (int i = 0; i < layer; ++i) carve_kept(to_input, to_weight, i, call.shape.rows());
    return carve_kept(to_input, to_weight, layer, call.shape.rows());
  }
  // Returns what F keeps of a layer, or its scratch with recomputation.
  Kept kept_or_recomputed(const Op& op, int layer) const {
    Kept out = kept(op.call, layer);
    if (!spec_.recompute) return out;
    Number* const input = out.activations.input;
    out = of_kind(op, layer).recomputed;
    out.activations.input = input;
    return out;
  }
  Gradients gradients_of(const SliceCall& call, int layer) const {
    Carver carver(call.output_gradients);
    for (int i = 0; i < layer; ++i) carve_gradients(carver, i, call.shape.rows());
    return carve_gradients(carver, layer, call.shape.rows());
  }
  const typename Scratch::OfKind& of_kind(const Op& op, int layer) const {
    return op.scratch.kinds[static_cast<std::size_t>(kind_of(layer))];
  }
  LayerGradients<Backend> layer_gradients(const Op& op, int layer, bool weights_too) const {
    LayerGradients<Backend> out = weights_too ? of_kind(op, layer).gradients : gradients_of(op.call, layer).others;
    out.down = read_gradient_of(op, layer, weights_too);
    return out;
  }
  // Has no tensors in a stage without a head.
  Head head_of(const SliceCall& call) const {
    if (!spec_.contents.head) return {};
    Carver to_input(call.to_input_gradient);
    Carver to_weight(call.to_weight_gradient);
    for (int i = 0; i < spec_.contents.layers; ++i) carve_kept(to_input, to_weight, i, call.shape.rows());
    return carve_head(to_input, to_weight, call.shape.rows());
  }
  LayerKeys<Backend> keys_of(const Op& op, int layer) const {
    const SliceCall& call = op.call;
    LayerKeys<Backend> out;
    out.tokens = spec_.sliced ? call.sequence_tokens : call.shape.tokens;
    const std::int64_t each = values_after(call.shape.sequences * out.tokens, sizes_.key_width);
    const std::int64_t at = std::int64_t{2} * layer * each;
    out.keys = keeps_keys() ? numbers(call.keys_values) + at : op.scratch.keys;
    out.values = out.keys + each;
    if (spec_.sliced && call.keys_values_gradient != nullptr) {
      out.keys_gradient = reals(call.keys_values_gradient) + at;
      out.values_gradient = out.keys_gradient + each;
    }
    return out;
  }

  Layer<Backend> layer_of(const Op& op, int layer) const {
    // On a device, the numbers of rows of a layer with experts are in SliceCall::on_host.
    const std::int64_t index = layer - (spec_.contents.layers - spec_.contents.expert_layers);
    return {.b = op.b,
            .kind = kind_of(layer),
            .at = offsets_.layers[layer],
            .weights = numbers(op.call.weights),
            .rows_on_host =
                index < 0 || op.call.on_host == nullptr
                    ? nullptr
                    : reinterpret_cast<std::int32_t*>(op.call.on_host + index * expert_host_bytes(sizes_.experts)),
            .scratch = op.scratch.layer};
  }
  const Number* weight(const SliceCall& call, std::int64_t offset) const {
    return offset < 0 ? nullptr : numbers(call.weights) + offset;
  }
  Real* gradient_at(const SliceCall& call, std::int64_t offset) const {
    return offset < 0 ? nullptr : reals(call.gradients) + offset;
  }
  const Number* head_weights(const SliceCall& call) const {
    return offsets_.head < 0 ? numbers(call.embedding) : weight(call, offsets_.head);
  }
  EmbeddingShape embedding_shape(const SliceCall& call) const {
    return {.rows = call.shape.rows(),
            .tokens = call.shape.tokens,
            .hidden = sizes_.hidden,
            .first_token = sizes_.first_token,
            .vocab_rows = sizes_.vocab_rows};
  }

  // Before anything is enqueued.
  void check_positions(const SliceShape& shape) const {
    const std::int64_t end = shape.most_keys();
    if (!spec_.contents.embedding || offsets_.position < 0 || end <= spec_.model.positions) return;
    throw InputError(fmt::format("{}: a slice ends at position {}, but the model has {} learned positions",
                                 spec_.model.name, end, spec_.model.positions));
  }

  void embed(const Op& op, Number* out) const {
    const SliceCall& call = op.call;
    // Only one rank of the all-reduce adds the positions.
    const bool positions_here = offsets_.position >= 0 && spec_.tensor_rank == 0;
    op.b.embed(embedding_shape(call), weight(call, offsets_.word),
               positions_here ? weight(call, offsets_.position) : nullptr, out);
    op.b.all_reduce(out, call.shape.rows() * sizes_.hidden);
  }
  void embedding_gradient(const Op& op, const Number* gradient) const {
    op.b.embedding_gradient(embedding_shape(op.call), gradient, gradient_at(op.call, offsets_.word),
                            gradient_at(op.call, offsets_.position));
  }

  Norm final_norm(const SliceCall& call) const {
    const Head head = head_of(call);
    return {.gain = weight(call, offsets_.final_gain),
            .bias = weight(call, offsets_.final_bias),
            .statistics = head.statistics,
            .out = head.normed};
  }
  void head_input_gradient(const Op& op, Number* out, std::int32_t* not_finite) const {
    const SliceCall& call = op.call;
    const std::int64_t n = call.shape.rows();
    const Head head = head_of(call);
    Number* const hidden = op.scratch.layer.hidden;
    op.b.linear.input_gradient(head.logits, head_weights(call), n, op.b.logit_columns(), sizes_.hidden, hidden,
                               {.outputs_stride = sizes_.vocab_columns});
    op.b.all_reduce(hidden, n * sizes_.hidden);
    op.b.norm_gradient(hidden, head.input, nullptr, weight(call, offsets_.final_gain), head.statistics, out,
                       gradient_at(call, offsets_.final_gain), gradient_at(call, offsets_.final_bias), not_finite);
  }
  void head_weight_gradient(const Op& op) const {
    const Head head = head_of(op.call);
    Real* const gradient = offsets_.head < 0 ? reals(op.call.embedding_gradient) : gradient_at(op.call, offsets_.head);
    op.b.linear.weight_gradient(head.logits, head.normed, op.call.shape.rows(), op.b.logit_columns(), sizes_.hidden,
                                gradient, {.outputs_stride = sizes_.vocab_columns});
  }

  // Returns the input of a layer in F: of layer `layers`, that of the head or of the next stage; and the norm of it, if
  // the backend fuses it with the residual before it.
  Number* input_of(const Op& op, int layer) const {
    if (layer < spec_.contents.layers) return kept(op.call, layer).activations.input;
    return spec_.contents.head ? head_of(op.call).input : numbers(op.call.output);
  }
  Norm norm_of(const Op& op, int layer) const {
    const bool last = layer == spec_.contents.layers;
    if (last && !spec_.contents.head) return {.not_finite = op.call.not_finite};
    if (!Backend::kFusesNorms) return {};
    if (last) return final_norm(op.call);
    const Kept of_layer = kept_or_recomputed(op, layer);
    return layer_of(op, layer).first_norm(of_layer.activations, of_layer.inputs);
  }
  // Return where the gradient of a layer's output is written, and from where it is read; of layer -1, of the stage's
  // input. Only I keeps those of layers; B reads that of the last layer from its input.
  Number* gradient_of(const Op& op, int layer, bool weights_too) const {
    if (layer < 0 && !spec_.contents.embedding) return numbers(op.call.input_gradient);
    if (layer < 0 || weights_too) return op.scratch.chain[layer & 1];
    return gradients_of(op.call, layer).down;
  }
  const Number* read_gradient_of(const Op& op, int layer, bool weights_too) const {
    const bool last = layer == spec_.contents.layers - 1;
    if (last && layer >= 0 && weights_too && !spec_.contents.head) return numbers(op.call.output_gradient);
    return gradient_of(op, layer, weights_too);
  }
  // Returns the flag of an input gradient that is an output of the stage, as that of layer 0 without an embedding.
  std::int32_t* flag_of(const SliceCall& call, int layer) const {
    return layer == 0 && !spec_.contents.embedding ? call.not_finite : nullptr;
  }

  // Before and after the layers of an op.
  void begin_forward(const Op& op) const {
    op.b.compute_rotary_angles();
    Number* const input = input_of(op, 0);
    if (spec_.contents.embedding) embed(op, input);
    // Moves the input to where it is kept.
    op.b.residual_norm(spec_.contents.embedding ? input : numbers(op.call.input), input, nullptr, nullptr,
                       norm_of(op, 0));
  }
  void end_forward(const Op& op, SliceCall& call) const {
    if (!spec_.contents.head) return;
    const Head head = head_of(call);
    if (!Backend::kFusesNorms) op.b.residual_norm(head.input, head.input, nullptr, nullptr, final_norm(call));
    op.b.linear.forward(head.normed, head_weights(call), call.shape.rows(), op.b.logit_columns(), sizes_.hidden,
                        head.logits, {.outputs_stride = sizes_.vocab_columns});
    op.b.loss({.rows = call.shape.rows(),
               .columns = sizes_.vocab_rows,
               .stride = sizes_.vocab_columns,
               .first_token = sizes_.first_token},
              head.logits, call);
  }
  void begin_gradient(const Op& op, SliceCall& call, bool weights_too) const {
    op.b.compute_rotary_angles();
    if (!Backend::kOnDevice) call.recompute_ns = 0;
    const int last = spec_.contents.layers - 1;
    // Without layers, the gradient is an output of the stage.
    std::int32_t* const flag = flag_of(call, last + 1);
    if (spec_.contents.head) {
      head_input_gradient(op, gradient_of(op, last, weights_too), flag);
    } else if (!weights_too || last < 0) {
      // Kept until W.
      op.b.residual_norm(numbers(call.output_gradient), gradient_of(op, last, weights_too), nullptr, nullptr,
                         {.not_finite = flag});
    }
  }
  void end_gradient(const Op& op, bool weights_too) const {
    if (spec_.contents.embedding) embedding_gradient(op, read_gradient_of(op, -1, weights_too));
    // Last, as W comes after I: both may add to the same word embedding.
    if (weights_too && spec_.contents.head) head_weight_gradient(op);
  }

  void gradient(SliceCall& call, bool weights_too) const {
    const Op op(*this, call);
    begin_gradient(op, call, weights_too);
    for (int i = spec_.contents.layers - 1; i >= 0; --i) {
      const Layer<Backend> layer = layer_of(op, i);
      Kept saved = kept_or_recomputed(op, i);
      const LayerGradients<Backend> gradients = layer_gradients(op, i, weights_too);
      const LayerKeys<Backend> keys = keys_of(op, i);
      if (spec_.recompute) {
        if (!weights_too) saved.inputs = gradients_of(call, i).inputs;
        recompute(op, layer, {keys, saved.activations, saved.inputs}, call);
      }
      if (call.parts != nullptr) call.parts->begin(PartPass::input_gradient, spec_.contents.layers - 1 - i);
      layer.input_gradient({keys, saved.activations, saved.inputs, gradients, reals(call.gradients),
                            gradient_of(op, i - 1, weights_too), flag_of(call, i)});
      if (weights_too) layer.weight_gradient(saved.inputs, gradients, reals(call.gradients));
    }
    end_gradient(op, weights_too);
  }
  void recompute(const Op& op, const Layer<Backend>& layer, const typename Layer<Backend>::Forward& pass,
                 SliceCall& call) const {
    const auto begin = std::chrono::steady_clock::now();
    Number* const input = pass.kept.input;
    if (Backend::kFusesNorms) {
      op.b.residual_norm(input, input, nullptr, nullptr, layer.first_norm(pass.kept, pass.inputs));
    }
    layer.forward(pass);
    if (Backend::kOnDevice) return;
    call.recompute_ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  }
  void complete_layer(const Op& op, int layer) const {
    const Kept saved = kept(op.call, layer);
    layer_of(op, layer).complete_forward(
        {keys_of(op, layer), saved.activations, saved.inputs, input_of(op, layer + 1), norm_of(op, layer + 1)});
  }

  StageSpec spec_;
  RankSizes sizes_;
  WeightOffsets offsets_;
  typename Backend::Config config_;
};

}  // namespace sluice::kernels
