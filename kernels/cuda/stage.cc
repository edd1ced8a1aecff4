#include "kernels/cuda/stage.h"

#include <fmt/format.h>

#include <array>
#include <stdexcept>
#include <vector>

#include "kernels/cuda/layer.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/initial_weights.h"
#include "model/errors.h"

namespace sluice::kernels::cuda {
namespace {

const Half* halves(const std::byte* buffer) { return reinterpret_cast<const Half*>(buffer); }
Half* halves(std::byte* buffer) { return reinterpret_cast<Half*>(buffer); }
const float* floats(const std::byte* buffer) { return reinterpret_cast<const float*>(buffer); }
float* floats(std::byte* buffer) { return reinterpret_cast<float*>(buffer); }

constexpr std::int64_t kHalfBytes = sizeof(Half);
constexpr std::int64_t kFloatBytes = sizeof(float);

// Implements Stage on a device, as kernels/cpu/stage.cc does on the CPU.
class CudaStage final : public Stage {
 public:
  CudaStage(const StageSpec& spec, Element element)
      : spec_(spec),
        element_(element),
        sizes_(rank_sizes(spec_)),
        offsets_(weight_offsets(spec_, sizes_)),
        step_ranges_(cuda::step_ranges(offsets_)),
        counted_ranges_(cuda::counted_ranges(offsets_)) {}

  const StageSpec& spec() const override { return spec_; }
  int element_bytes() const override { return kHalfBytes; }
  std::span<const Parameter> parameters() const override { return offsets_.parameters; }

  StageMemory memory() const override {
    return {.weights = offsets_.elements * kHalfBytes,
            .gradients = offsets_.elements * kFloatBytes,
            .optimizer_state = 3 * offsets_.elements * kFloatBytes,
            .dense_gradients = offsets_.dense_elements * kFloatBytes};
  }
  SliceMemory slice_memory(const SliceShape& shape) const override;
  std::int64_t slice_host_bytes() const override {
    return spec_.contents.expert_layers * expert_host_bytes(sizes_.experts);
  }
  std::int64_t scratch_bytes(const SliceShape& shape) const override {
    BlockCarver carver;
    const OpScratch scratch(carver, *this, shape);
    return carver.bytes();
  }

  void initialise(std::byte* weights, std::uint64_t seed) const override {
    initialise_weights(spec_, offsets_, seed, floats(weights));
  }
  std::int64_t table_bytes(std::int64_t positions) const override {
    return has_rotary() ? positions * sizes_.head_dim * kFloatBytes : 0;
  }
  void fill_tables(std::byte* tables, std::int64_t positions, Stream& stream) const override {
    if (has_rotary()) rotary_angles(stream, 0, positions, sizes_.head_dim, floats(tables));
  }
  void forward(SliceCall& call) const override;
  void input_gradient(SliceCall& call) const override { gradient(call, false); }
  void weight_gradient(SliceCall& call) const override;
  void backward(SliceCall& call) const override { gradient(call, true); }
  void begin_parts(SliceCall& call, bool forward) const override;
  void run_part(const SliceCall& call, const StagePart& part) const override;
  void end_parts(SliceCall& call, bool forward) const override;

  double squared_norm(const std::byte*) const override {
    throw std::logic_error("squared_norm is not implemented by device stages");
  }
  void add_squared_norm(const std::byte* gradients, float* squares, Stream& stream) const override {
    add_squares(stream, counted_ranges_, floats(gradients), squares);
  }
  void set_weights(const std::byte* float_weights, std::byte* weights, std::byte* optimizer_state,
                   Stream& stream) const override {
    cuda::set_weights(stream, element_, offsets_.elements, floats(float_weights), floats(optimizer_state),
                      halves(weights));
  }
  void step(const std::byte* /*weights*/, std::byte* new_weights, std::byte* optimizer_state,
            const std::byte* gradients, const OptimizerStep& step) const override {
    float* const master = floats(optimizer_state);
    optimizer_step(*step.stream, element_, step_ranges_, step,
                   {.master = master, .first = master + offsets_.elements, .second = master + 2 * offsets_.elements},
                   floats(gradients), halves(new_weights));
  }

 private:
  // Tensors that the head stores.
  struct Head {
    Half* input = nullptr;        // [n, h], of the final norm; until I
    float* statistics = nullptr;  // [n, 2]; until I
    Half* normed = nullptr;       // [n, h], until W
    Half* logits = nullptr;       // [n, vocab_columns], after F their gradient; until W
  };

  // Part of a slice's buffers that belongs to one layer.
  struct Kept {
    LayerActivations activations;
    LayerInputs inputs;
  };
  struct Gradients {
    Half* down = nullptr;  // [n, h]
    LayerGradients others;
    LayerInputs inputs;  // with recomputation
  };

  struct OpScratch {
    struct OfKind {
      LayerGradients gradients;  // of one layer, in B
      Kept recomputed;           // of one layer
    };
    OpScratch(BlockCarver& carver, const CudaStage& stage, const SliceShape& shape)
        : layer(carver, stage.sizes_, shape, stage.spec_) {
      const std::int64_t n = shape.rows();
      const RankSizes& sizes = stage.sizes_;
      if (stage.has_rotary()) {
        angles = carver.take<float>(shape.tokens * sizes.head_dim);
      }
      if (stage.spec_.contents.head) {
        auto* const all = carver.take<float>(kRowSums * n);
        if (all != nullptr) sums = {.maxima = all, .own_maxima = all + n, .sums = all + 2 * n, .losses = all + 4 * n};
      }
      for (Half*& link : chain) link = carver.take<Half>(n * sizes.hidden);
      for (const auto& [kind, count] : stage.spec_.contents.by_kind()) {
        if (count == 0) continue;
        OfKind& own = kinds[static_cast<std::size_t>(kind)];
        own.gradients.carve(carver, sizes, kind, n);
        if (!stage.spec_.recompute) continue;
        own.recomputed.activations.carve_rest(carver, sizes, kind, n);
        own.recomputed.inputs.carve(carver, sizes, kind, n);
      }
      if (stage.spec_.recompute && !stage.spec_.sliced) {
        keys = carver.take<Half>(2 * values_after(n, sizes.key_width));
      }
    }
    const OfKind& of(LayerKind kind) const { return kinds[static_cast<std::size_t>(kind)]; }

    LayerScratch layer;
    float* angles = nullptr;  // without SliceCall::tables
    RowSums sums;
    Half* chain[2] = {nullptr, nullptr};  // gradients of a layer's output and input, alternating
    std::array<OfKind, 2> kinds;          // by LayerKind
    Half* keys = nullptr;                 // and values, of the recomputed layer, unless they are stored
  };

  bool has_rotary() const { return spec_.contents.layers > 0 && spec_.model.positions == 0; }
  bool keeps_keys() const { return spec_.sliced || !spec_.recompute; }
  LayerKind kind_of(int layer) const {
    return layer < spec_.contents.layers - spec_.contents.expert_layers ? LayerKind::dense : LayerKind::experts;
  }

  // Carve the parts of one layer.
  Kept carve_kept(BlockCarver& to_input, BlockCarver& to_weight, int layer, std::int64_t rows) const;
  Gradients carve_gradients(BlockCarver& carver, int layer, std::int64_t rows) const;
  Head carve_head(BlockCarver& to_input, BlockCarver& to_weight, std::int64_t rows) const;
  Kept kept(const SliceCall& call, int layer) const;
  Gradients gradients_of(const SliceCall& call, int layer) const;
  Head head_of(const SliceCall& call) const;  // without tensors in a stage without a head

  Linear linear_of(const SliceCall& call) const {
    return {element_, *call.device, *call.stream,
            spec_.gemms == GemmChoice::cublaslt ? call.device->gemm_library() : nullptr};
  }
  // The numbers of rows of a layer with experts, in SliceCall::on_host.
  std::int32_t* rows_on_host(const SliceCall& call, int layer) const {
    const int index = layer - (spec_.contents.layers - spec_.contents.expert_layers);
    return index < 0 ? nullptr
                     : reinterpret_cast<std::int32_t*>(call.on_host + index * expert_host_bytes(sizes_.experts));
  }
  Layer layer_of(const SliceCall& call, int layer, const OpScratch& scratch) const {
    return {.kind = kind_of(layer),
            .spec = spec_,
            .sizes = sizes_,
            .at = offsets_.layers[layer],
            .shape = call.shape,
            .weights = halves(call.weights),
            .linear = linear_of(call),
            .group = call.stream_group,
            .experts = call.stream_experts,
            .wait_for = call.wait_for,
            .rows_on_host = rows_on_host(call, layer),
            .angles = angles_of(call, scratch)};
  }
  LayerKeys keys_of(const SliceCall& call, int layer, const OpScratch& scratch, bool with_gradients) const;
  const Half* head_weights(const SliceCall& call) const {
    return offsets_.head < 0 ? halves(call.embedding) : halves(call.weights) + offsets_.head;
  }
  NormWeights final_norm(const SliceCall& call) const {
    const Half* const weights = halves(call.weights);
    return {.gain = weights + offsets_.final_gain,
            .bias = offsets_.final_bias < 0 ? nullptr : weights + offsets_.final_bias,
            .rms = spec_.model.rms_norm};
  }
  LogitsShape logits_shape(const SliceCall& call) const {
    return {.rows = call.shape.rows(),
            .columns = sizes_.vocab_rows,
            .stride = sizes_.vocab_columns,
            .first_token = sizes_.first_token};
  }
  EmbeddingShape embedding_shape(const SliceCall& call) const {
    return {.rows = call.shape.rows(),
            .tokens = call.shape.tokens,
            .hidden = sizes_.hidden,
            .first_token = sizes_.first_token,
            .vocab_rows = sizes_.vocab_rows};
  }

  void check(const SliceCall& call) const;
  void begin_embedding(const SliceCall& call, Half* out) const;
  void embedding_gradient(const SliceCall& call, const Half* gradient) const;
  void head_forward(const SliceCall& call, const Head& head, const OpScratch& scratch) const;
  void head_input_gradient(const SliceCall& call, const OpScratch& scratch, Half* out, std::int32_t* not_finite) const;
  void head_weight_gradient(const SliceCall& call) const;
  void gradient(const SliceCall& call, bool weights_too) const;
  // Before and after the layers of an op.
  void begin_forward(const SliceCall& call, const OpScratch& scratch) const;
  void end_forward(const SliceCall& call, const OpScratch& scratch) const;
  void begin_gradient(const SliceCall& call, const OpScratch& scratch, bool weights_too) const;
  void end_gradient(const SliceCall& call, const OpScratch& scratch, bool weights_too) const;
  void complete_layer(const SliceCall& call, int layer, const OpScratch& scratch) const;
  // Returns what F keeps of a layer, or its scratch with recomputation.
  Kept kept_or_recomputed(const SliceCall& call, int layer, const OpScratch& scratch) const;
  // Returns the input of a layer in F: of layer `layers`, that of the head or of the next stage; and the norm of it.
  Half* input_of(const SliceCall& call, int layer) const;
  NextNorm norm_of(const SliceCall& call, int layer, const OpScratch& scratch) const;
  // Return where the gradient of a layer's output is written, and from where it is read; of layer -1, of the stage's
  // input. Only I keeps those of layers.
  Half* gradient_of(const SliceCall& call, const OpScratch& scratch, int layer, bool weights_too) const;
  const Half* read_gradient_of(const SliceCall& call, const OpScratch& scratch, int layer, bool weights_too) const;
  // Returns the flag of an input gradient that is an output of the stage, as that of layer 0 without an embedding.
  std::int32_t* flag_of(const SliceCall& call, int layer) const {
    return layer == 0 && !spec_.contents.embedding ? call.not_finite : nullptr;
  }

  void compute_rotary_angles(const SliceCall& call, const OpScratch& scratch) const {
    if (!has_rotary() || call.tables != nullptr) return;
    rotary_angles(*call.stream, call.shape.context, call.shape.tokens, sizes_.head_dim, scratch.angles);
  }
  const float* angles_of(const SliceCall& call, const OpScratch& scratch) const {
    if (!has_rotary() || call.tables == nullptr) return scratch.angles;
    return floats(call.tables) + call.shape.context * sizes_.head_dim;
  }
  void sum_over_group(const SliceCall& call, void* data, std::int64_t count, Element element) const {
    if (spec_.tensor_parallel > 1) call.stream_group->all_reduce_sum(data, count, element, *call.stream);
  }

  StageSpec spec_;
  Element element_;
  RankSizes sizes_;
  WeightOffsets offsets_;
  std::vector<WeightRange> step_ranges_;
  std::vector<WeightRange> counted_ranges_;
};

CudaStage::Kept CudaStage::carve_kept(BlockCarver& to_input, BlockCarver& to_weight, int layer,
                                      std::int64_t rows) const {
  Kept out;
  out.activations.carve_input(to_input, sizes_, rows);
  if (spec_.recompute) return out;
  out.activations.carve_rest(to_input, sizes_, kind_of(layer), rows);
  out.inputs.carve(to_weight, sizes_, kind_of(layer), rows);
  return out;
}

CudaStage::Gradients CudaStage::carve_gradients(BlockCarver& carver, int layer, std::int64_t rows) const {
  Gradients out;
  out.down = carver.take<Half>(rows * sizes_.hidden);
  out.others.carve(carver, sizes_, kind_of(layer), rows);
  out.others.down = out.down;
  if (spec_.recompute) out.inputs.carve(carver, sizes_, kind_of(layer), rows);
  return out;
}

CudaStage::Head CudaStage::carve_head(BlockCarver& to_input, BlockCarver& to_weight, std::int64_t rows) const {
  Head out;
  out.input = to_input.take<Half>(rows * sizes_.hidden);
  out.statistics = to_input.take<float>(rows * kNormStatistics);
  out.normed = to_weight.take<Half>(rows * sizes_.hidden);
  out.logits = to_weight.take<Half>(rows * sizes_.vocab_columns);
  return out;
}

SliceMemory CudaStage::slice_memory(const SliceShape& shape) const {
  const std::int64_t n = shape.rows();
  BlockCarver to_input;
  BlockCarver to_weight;
  BlockCarver gradients;
  for (int layer = 0; layer < spec_.contents.layers; ++layer) {
    carve_kept(to_input, to_weight, layer, n);
    carve_gradients(gradients, layer, n);
  }
  if (spec_.contents.head) carve_head(to_input, to_weight, n);
  const std::int64_t keys_values = std::int64_t{2} * spec_.contents.layers * values_after(n, sizes_.key_width);
  return {.to_input_gradient = to_input.bytes(),
          .to_weight_gradient = to_weight.bytes(),
          .output_gradients = gradients.bytes(),
          .keys_values = keeps_keys() ? keys_values * kHalfBytes : 0,
          .keys_values_gradient = spec_.sliced ? keys_values * kFloatBytes : 0,
          .boundary = n * sizes_.hidden * kHalfBytes};
}

CudaStage::Kept CudaStage::kept(const SliceCall& call, int layer) const {
  BlockCarver to_input(call.to_input_gradient);
  BlockCarver to_weight(call.to_weight_gradient);
  for (int i = 0; i < layer; ++i) carve_kept(to_input, to_weight, i, call.shape.rows());
  return carve_kept(to_input, to_weight, layer, call.shape.rows());
}

CudaStage::Gradients CudaStage::gradients_of(const SliceCall& call, int layer) const {
  BlockCarver carver(call.output_gradients);
  for (int i = 0; i < layer; ++i) carve_gradients(carver, i, call.shape.rows());
  return carve_gradients(carver, layer, call.shape.rows());
}

CudaStage::Head CudaStage::head_of(const SliceCall& call) const {
  if (!spec_.contents.head) return {};
  BlockCarver to_input(call.to_input_gradient);
  BlockCarver to_weight(call.to_weight_gradient);
  for (int i = 0; i < spec_.contents.layers; ++i) carve_kept(to_input, to_weight, i, call.shape.rows());
  return carve_head(to_input, to_weight, call.shape.rows());
}

LayerKeys CudaStage::keys_of(const SliceCall& call, int layer, const OpScratch& scratch, bool with_gradients) const {
  const std::int64_t tokens = spec_.sliced ? call.sequence_tokens : call.shape.tokens;
  const std::int64_t at = std::int64_t{2} * layer * values_after(call.shape.sequences * tokens, sizes_.key_width);
  float* gradient = scratch.layer.keys_gradient;
  if (spec_.sliced && with_gradients) gradient = floats(call.keys_values_gradient) + at;
  return {
      .tokens = tokens, .keys = keeps_keys() ? halves(call.keys_values) + at : scratch.keys, .keys_gradient = gradient};
}

void CudaStage::check(const SliceCall& call) const {
  const std::int64_t end = call.shape.context + call.shape.tokens;
  if (offsets_.position >= 0 && end > spec_.model.positions) {
    throw InputError(fmt::format("{}: a slice ends at position {}, but the model has {} learned positions",
                                 spec_.model.name, end, spec_.model.positions));
  }
}

void CudaStage::begin_embedding(const SliceCall& call, Half* out) const {
  const Half* const weights = halves(call.weights);
  // Only one rank of the all-reduce adds the positions.
  const bool positions_here = offsets_.position >= 0 && spec_.tensor_rank == 0;
  const Half* const positions =
      positions_here ? weights + offsets_.position + call.shape.context * sizes_.hidden : nullptr;
  embed(*call.stream, element_, embedding_shape(call), call.tokens, weights + offsets_.word, positions, out);
  sum_over_group(call, out, call.shape.rows() * sizes_.hidden, element_);
}

void CudaStage::embedding_gradient(const SliceCall& call, const Half* gradient) const {
  float* const gradients = floats(call.gradients);
  cuda::embedding_gradient(
      *call.stream, element_, embedding_shape(call), call.tokens, gradient, gradients + offsets_.word,
      offsets_.position < 0 ? nullptr : gradients + offsets_.position + call.shape.context * sizes_.hidden);
}

void CudaStage::head_forward(const SliceCall& call, const Head& head, const OpScratch& scratch) const {
  const std::int64_t n = call.shape.rows();
  Stream& stream = *call.stream;
  const LogitsShape shape = logits_shape(call);
  linear_of(call).forward(head.normed, head_weights(call), n, sizes_.vocab_columns, sizes_.hidden, head.logits);
  sum_logits(stream, element_, shape, head.logits, call.targets, scratch.sums);
  if (spec_.tensor_parallel > 1) {
    call.stream_group->all_reduce_max(scratch.sums.maxima, n, stream);
    rescale_sums(stream, n, scratch.sums);
    call.stream_group->all_reduce_sum(scratch.sums.sums, 2 * n, Element::float32, stream);
  }
  logits_gradient(stream, element_, shape, head.logits, call.targets, scratch.sums, static_cast<float>(call.loss_scale),
                  call.loss_on_device, call.not_finite);
}

void CudaStage::head_input_gradient(const SliceCall& call, const OpScratch& scratch, Half* out,
                                    std::int32_t* not_finite) const {
  const std::int64_t n = call.shape.rows();
  const std::int64_t h = sizes_.hidden;
  const Head head = head_of(call);
  linear_of(call).input_gradient(head.logits, head_weights(call), n, sizes_.vocab_columns, h, scratch.layer.hidden, h);
  sum_over_group(call, scratch.layer.hidden, n * h, element_);
  float* const gradients = floats(call.gradients);
  norm_gradient(*call.stream, element_, scratch.layer.hidden, head.input, nullptr, final_norm(call), head.statistics, n,
                h, out, gradients + offsets_.final_gain,
                offsets_.final_bias < 0 ? nullptr : gradients + offsets_.final_bias, not_finite);
}

void CudaStage::head_weight_gradient(const SliceCall& call) const {
  const Head head = head_of(call);
  float* const gradient = offsets_.head < 0 ? floats(call.embedding_gradient) : floats(call.gradients) + offsets_.head;
  linear_of(call).weight_gradient(head.logits, head.normed, call.shape.rows(), sizes_.vocab_columns, sizes_.hidden,
                                  gradient);
}

CudaStage::Kept CudaStage::kept_or_recomputed(const SliceCall& call, int layer, const OpScratch& scratch) const {
  Kept out = kept(call, layer);
  if (!spec_.recompute) return out;
  Half* const input = out.activations.input;
  out = scratch.of(kind_of(layer)).recomputed;
  out.activations.input = input;
  return out;
}

Half* CudaStage::input_of(const SliceCall& call, int layer) const {
  if (layer < spec_.contents.layers) return kept(call, layer).activations.input;
  return spec_.contents.head ? head_of(call).input : halves(call.output);
}

// Each norm is fused with the residual before it.
NextNorm CudaStage::norm_of(const SliceCall& call, int layer, const OpScratch& scratch) const {
  if (layer < spec_.contents.layers) {
    const Kept of_layer = kept_or_recomputed(call, layer, scratch);
    return layer_of(call, layer, scratch).first_norm(of_layer.activations, of_layer.inputs);
  }
  if (!spec_.contents.head) return {.not_finite = call.not_finite};
  const Head head = head_of(call);
  return {.weights = final_norm(call), .statistics = head.statistics, .out = head.normed};
}

Half* CudaStage::gradient_of(const SliceCall& call, const OpScratch& scratch, int layer, bool weights_too) const {
  if (layer < 0 && !spec_.contents.embedding) return halves(call.input_gradient);
  if (layer < 0 || weights_too) return scratch.chain[layer & 1];
  return gradients_of(call, layer).down;
}

const Half* CudaStage::read_gradient_of(const SliceCall& call, const OpScratch& scratch, int layer,
                                        bool weights_too) const {
  const bool last = layer == spec_.contents.layers - 1;
  if (last && layer >= 0 && weights_too && !spec_.contents.head) return halves(call.output_gradient);
  return gradient_of(call, scratch, layer, weights_too);
}

void CudaStage::begin_forward(const SliceCall& call, const OpScratch& scratch) const {
  check(call);
  compute_rotary_angles(call, scratch);
  Half* const input = input_of(call, 0);
  if (spec_.contents.embedding) begin_embedding(call, input);
  // The first norm also moves the input to where it is kept.
  const NextNorm first = norm_of(call, 0, scratch);
  residual_norm(*call.stream, element_, spec_.contents.embedding ? input : halves(call.input), input, nullptr, nullptr,
                call.shape.rows(), sizes_.hidden, first.weights, first.statistics, first.out, first.not_finite);
}

void CudaStage::end_forward(const SliceCall& call, const OpScratch& scratch) const {
  if (const Head head = head_of(call); head.logits != nullptr) head_forward(call, head, scratch);
}

void CudaStage::forward(SliceCall& call) const {
  BlockCarver carver(call.scratch);
  const OpScratch scratch(carver, *this, call.shape);
  begin_forward(call, scratch);
  for (int i = 0; i < spec_.contents.layers; ++i) {
    const Kept of_layer = kept_or_recomputed(call, i, scratch);
    layer_of(call, i, scratch)
        .forward({keys_of(call, i, scratch, false), of_layer.activations, of_layer.inputs, scratch.layer,
                  input_of(call, i + 1), norm_of(call, i + 1, scratch)});
  }
  end_forward(call, scratch);
}

void CudaStage::begin_gradient(const SliceCall& call, const OpScratch& scratch, bool weights_too) const {
  compute_rotary_angles(call, scratch);
  const int last = spec_.contents.layers - 1;
  // Without layers, the gradient is an output of the stage.
  std::int32_t* const flag = flag_of(call, last + 1);
  if (spec_.contents.head) {
    head_input_gradient(call, scratch, gradient_of(call, scratch, last, weights_too), flag);
  } else if (!weights_too || last < 0) {
    // Kept until W.
    residual_norm(*call.stream, element_, halves(call.output_gradient), gradient_of(call, scratch, last, weights_too),
                  nullptr, nullptr, call.shape.rows(), sizes_.hidden, {}, nullptr, nullptr, flag);
  }
}

void CudaStage::end_gradient(const SliceCall& call, const OpScratch& scratch, bool weights_too) const {
  if (spec_.contents.embedding) embedding_gradient(call, read_gradient_of(call, scratch, -1, weights_too));
  // Last, as W comes after I: both may add to the same word embedding.
  if (weights_too && spec_.contents.head) head_weight_gradient(call);
}

void CudaStage::gradient(const SliceCall& call, bool weights_too) const {
  BlockCarver carver(call.scratch);
  const OpScratch scratch(carver, *this, call.shape);
  begin_gradient(call, scratch, weights_too);
  for (int i = spec_.contents.layers - 1; i >= 0; --i) {
    const Layer layer = layer_of(call, i, scratch);
    Kept saved = kept_or_recomputed(call, i, scratch);
    LayerGradients gradients = weights_too ? scratch.of(kind_of(i)).gradients : gradients_of(call, i).others;
    gradients.down = read_gradient_of(call, scratch, i, weights_too);
    const LayerKeys keys = keys_of(call, i, scratch, true);
    if (spec_.recompute) {
      if (!weights_too) saved.inputs = gradients_of(call, i).inputs;
      Half* const input = saved.activations.input;
      const NextNorm first = layer.first_norm(saved.activations, saved.inputs);
      residual_norm(*call.stream, element_, input, input, nullptr, nullptr, call.shape.rows(), sizes_.hidden,
                    first.weights, first.statistics, first.out);
      layer.forward({keys, saved.activations, saved.inputs, scratch.layer});
    }
    layer.input_gradient({keys, saved.activations, saved.inputs, gradients, scratch.layer, floats(call.gradients),
                          gradient_of(call, scratch, i - 1, weights_too), flag_of(call, i)});
    if (weights_too) layer.weight_gradient(saved.inputs, gradients, scratch.layer, floats(call.gradients));
  }
  end_gradient(call, scratch, weights_too);
}

void CudaStage::begin_parts(SliceCall& call, bool forward) const {
  BlockCarver carver(call.scratch);
  const OpScratch scratch(carver, *this, call.shape);
  forward ? begin_forward(call, scratch) : begin_gradient(call, scratch, call.output_gradients == nullptr);
}

// Finds the tensors of the layer again for every part, as they are functions of the call.
void CudaStage::run_part(const SliceCall& call, const StagePart& part) const {
  BlockCarver carver(call.scratch);
  const OpScratch scratch(carver, *this, call.shape);
  const int i = part.layer;
  const Layer layer = layer_of(call, i, scratch);
  const Kept saved = kept(call, i);
  const bool forward = part.pass == PartPass::forward;
  const LayerKeys keys = keys_of(call, i, scratch, !forward);
  if (forward) {
    if (part.part == LayerPart::attention && i > 0) complete_layer(call, i - 1, scratch);
    return layer.forward_part(part.part, {keys, saved.activations, saved.inputs, scratch.layer, input_of(call, i + 1),
                                          norm_of(call, i + 1, scratch)});
  }
  const bool weights_too = call.output_gradients == nullptr;
  LayerGradients gradients = weights_too ? scratch.of(kind_of(i)).gradients : gradients_of(call, i).others;
  gradients.down = read_gradient_of(call, scratch, i, weights_too);
  if (part.pass == PartPass::weight_gradient) {
    return layer.weight_gradient_part(part.part, saved.inputs, gradients, scratch.layer, floats(call.gradients));
  }
  layer.input_gradient_part(part.part,
                            {keys, saved.activations, saved.inputs, gradients, scratch.layer, floats(call.gradients),
                             gradient_of(call, scratch, i - 1, weights_too), flag_of(call, i)});
}

void CudaStage::complete_layer(const SliceCall& call, int layer, const OpScratch& scratch) const {
  const Kept saved = kept(call, layer);
  layer_of(call, layer, scratch)
      .complete_forward({keys_of(call, layer, scratch, false), saved.activations, saved.inputs, scratch.layer,
                         input_of(call, layer + 1), norm_of(call, layer + 1, scratch)});
}

void CudaStage::end_parts(SliceCall& call, bool forward) const {
  BlockCarver carver(call.scratch);
  const OpScratch scratch(carver, *this, call.shape);
  if (!forward) return end_gradient(call, scratch, call.output_gradients == nullptr);
  if (spec_.contents.layers > 0) complete_layer(call, spec_.contents.layers - 1, scratch);
  end_forward(call, scratch);
}

void CudaStage::weight_gradient(SliceCall& call) const {
  BlockCarver carver(call.scratch);
  const OpScratch scratch(carver, *this, call.shape);
  for (int i = spec_.contents.layers - 1; i >= 0; --i) {
    const Gradients gradients = gradients_of(call, i);
    const LayerInputs inputs = spec_.recompute ? gradients.inputs : kept(call, i).inputs;
    layer_of(call, i, scratch).weight_gradient(inputs, gradients.others, scratch.layer, floats(call.gradients));
  }
  if (spec_.contents.head) head_weight_gradient(call);
}

}  // namespace

std::unique_ptr<Stage> make_stage(const StageSpec& spec, Precision precision) {
  switch (precision) {
    case Precision::float16: return std::make_unique<CudaStage>(spec, Element::float16);
    case Precision::bfloat16: return std::make_unique<CudaStage>(spec, Element::bfloat16);
    case Precision::float32:
    case Precision::float64: break;
  }
  throw InputError("precision: devices support fp16 and bf16");
}

}  // namespace sluice::kernels::cuda
