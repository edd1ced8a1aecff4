#include "model/blocks/transformer_footprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/blocks/encoder.h"
#include "model/blocks/layer.h"
#include "model/errors.h"

namespace sluice::model {
namespace {

constexpr double kMaxSliceBytes = 1e18;

// Rejects slices whose bytes could overflow, by an upper bound of all of them together, in floating point.
void check_countable(const Model& model, double expert_rows, int layers, bool scored, const MicrobatchShape& shape,
                     int slice) {
  const auto tokens = static_cast<double>(shape.slice_lengths[slice]);
  const double rows = tokens * shape.sequences;
  double width = 0;  // of the widest layer
  double heads = 0;
  for (const Layer& layer : model.kinds()) {
    auto of_layer = static_cast<double>(model.boundary_width());
    for (const LayerStep& step : layer.steps) {
      for (const BlockPtr& block : step.blocks) of_layer += expert_rows * block->width();
    }
    width = std::max(width, of_layer);
  }
  if (scored) heads = static_cast<double>(model.flat ? model.flat->heads : 1 << 15);
  const double scores = heads * rows * (static_cast<double>(shape.context(slice)) + tokens);
  const double words = static_cast<double>(padded_vocab(model, 1)) + 128;  // at least the number on one device
  const double bytes = 32 * ((layers + 1.0) * (rows * width + scores) + rows * words * (1 + model.mtp_layers));
  if (bytes <= kMaxSliceBytes) return;
  throw InputError(
      fmt::format("{}: a slice of {:.3g} tokens in {} sequences: more bytes of activations than can be "
                  "counted",
                  model.name, tokens, shape.sequences));
}

// A sum of tensors in place of a list.
struct SliceSum {
  SliceBytes bytes;
  void push_back(const SliceTensor& tensor) { bytes.*tensor.field += tensor.count * tensor.bytes; }
};

// The part of `bytes` of optimizer states that is in host memory.
std::int64_t offloaded_part(const Training& training, std::int64_t bytes) {
  return static_cast<std::int64_t>(training.optimizer_offload * static_cast<double>(bytes));
}

// Replaces the tensors of a workspace by this one where it is larger.
void replace_if_larger(SliceSum& sum, const SliceTensor& tensor) {
  sum.bytes.*tensor.field = std::max(sum.bytes.*tensor.field, tensor.count * tensor.bytes);
}
void replace_if_larger(std::vector<SliceTensor>& tensors, const SliceTensor& tensor) {
  std::int64_t there = 0;
  for (const SliceTensor& other : tensors) {
    if (other.field == tensor.field) there += other.count * other.bytes;
  }
  if (there >= tensor.count * tensor.bytes) return;
  std::erase_if(tensors, [&](const SliceTensor& other) { return other.field == tensor.field; });
  tensors.push_back(tensor);
}

// Adds `layers` equal layers, of whose modules those in `again` are recomputed. The inputs of `received` of them are
// buffers of what the stage receives.
template <typename Out>
void add_layers(Out& out, const LayerTensors& tensors, std::int64_t layers, RecomputeModules again, bool sliced,
                std::int64_t received) {
  using Field = std::int64_t SliceBytes::*;
  for (const LayerTensor& tensor : tensors) {
    const std::int64_t count = &tensor == &tensors.front() ? layers - received : layers;
    if (count == 0) continue;
    const bool dropped = again.any_of(tensor.recomputed_by);
    // Recomputed operands of weight gradients stay from I to W; the keys and values of a slice are read by later ones.
    Field field = &SliceBytes::activations_to_input_gradient;
    if (tensor.life == TensorLife::gradient) field = &SliceBytes::gradients_to_weight_gradient;
    if (tensor.life == TensorLife::to_weight_gradient) {
      field = dropped ? &SliceBytes::gradients_to_weight_gradient : &SliceBytes::activations_to_weight_gradient;
    } else if (tensor.life == TensorLife::keys_values) {
      field = &SliceBytes::keys_values;
      if (dropped && !sliced) continue;
    } else if (dropped) {
      continue;
    }
    out.push_back({field, tensor.name, tensor.formula, count, tensor.bytes});
    if (tensor.life == TensorLife::keys_values && sliced) {
      out.push_back({&SliceBytes::keys_values_gradient, "32-bit gradients of keys and values", "4 n g (d + dv) / t",
                     count, 2 * tensor.bytes});
    }
  }
}

// Adds the workspace of one layer. The backward pass of the stage starts in its last layer, before anything has been
// freed.
template <typename Out>
void add_layer_workspace(Out& out, const LayerTensors& tensors, RecomputeModules again, bool sliced) {
  for (const LayerTensor& tensor : tensors) {
    const bool dropped = again.any_of(tensor.recomputed_by);
    const bool kept = tensor.life == TensorLife::keys_values && sliced;
    if (tensor.life == TensorLife::gradient || (dropped && !kept)) {
      out.push_back({&SliceBytes::backward_workspace, tensor.name, tensor.formula, 1, tensor.bytes});
    }
    if (tensor.life == TensorLife::scores && dropped) {
      out.push_back({&SliceBytes::forward_workspace, tensor.name, tensor.formula, 1, tensor.bytes});
    }
  }
}

// Parameters whose gradients Megatron-LM reduces, and which it gathers, at a time (distributed_data_parallel.py).
std::int64_t bucket_parameters(std::int64_t data_ranks) {
  return std::max<std::int64_t>(40'000'000, 1'000'000 * data_ranks);
}

}  // namespace

std::int64_t offloaded_bytes(const Model& model, const Training& training, const StageContents& contents) {
  const std::int64_t all = trained_parameters_per_device(model, training, contents);
  const std::int64_t experts = trained_expert_parameters_per_device(model, training, contents);
  const bool shards = training.distributed_optimizer;
  const std::int64_t count =
      (all - experts) / (shards ? training.shard_ranks() : 1) + experts / (shards ? training.expert_shard_ranks() : 1);
  return offloaded_part(training, (training.optimizer_bytes + training.gradient_bytes) * count);
}

TransformerFootprint::TransformerFootprint(Model model, Training training, std::vector<StageContents> stages,
                                           std::int64_t workspace)
    : model_(std::move(model)), training_(std::move(training)), stages_(std::move(stages)), workspace_(workspace) {
  check_training(model_, training_);
  for (int stage = 0; stage < static_cast<int>(stages_.size()); ++stage) {
    // After multi-token prediction, stages send more.
    int before = stage - 1;
    while (before >= 0 && stages_[before].mtp_layers == 0 && stages_[before] != stages_[stage]) --before;
    const bool found = before >= 0 && stages_[before].mtp_layers == 0;
    alike_.push_back(found ? alike_[before] : stage);
  }
}

StageBytes TransformerFootprint::stage(int stage) const {
  const StageContents& held = stages_[stage];
  const std::int64_t count = parameters_of(held);
  StageBytes bytes;
  bytes.weights = 2 * count;
  const PrecisionTraits& traits = traits_of(training_.precision, training_.any_layout);
  if (traits.narrow()) {
    // All layouts of each matrix are kept from its first GEMM of an iteration to its last, besides the 16-bit weights
    // or in their place.
    const std::int64_t linear =
        stage_linear_parameters_per_device(model_, training_.tp, held, training_.expert_ranks());
    bytes.weights += (training_.forward_only() ? 1 : traits.layouts) * operand_bytes(training_.precision, linear) -
                     (training_.replaces_weights() ? 2 * linear : 0);
  }
  if (training_.forward_only()) {
    bytes.scratch = workspace_;
    return bytes;
  }
  const std::int64_t trained = trained_parameters_per_device(model_, training_, held);
  if (training_.lora_rank > 0) bytes.weights += 2 * trained;  // adapters, beside what is frozen
  bytes.gradients = (training_.gradient_bytes + (training_.gradient_copy ? 2 : 0)) * trained;
  bytes.optimizer =
      training_.distributed_optimizer ? sharded(held, training_.optimizer_bytes) : training_.optimizer_bytes * trained;
  bytes.scratch = training_.transformer_engine ? 2 * stage_matrices_of_each_shape(model_, training_, held) : 0;
  bytes.scratch += workspace_ + (held.head ? deferred_bytes() : 0);
  bytes.reduced = training_.gradient_bytes * trained;
  bytes.buckets = static_cast<int>(std::max<std::int64_t>(1, trained / bucket_parameters(training_.data_ranks())));
  bytes.gathered = training_.distributed_optimizer ? gathered_parameter_bytes(model_, training_, held) : 0;
  if (training_.reduces_per_op()) bytes.gradients = sharded(held, training_.gradient_bytes);
  // FSDP allocates whole gradients in the first backward and frees them when they have been reduced to a shard.
  if (training_.zero_stage() >= 2 && training_.pp > 1) {
    bytes.accumulated_gradients = bytes.gradients;
    bytes.gradients = sharded(held, training_.gradient_bytes);
  }
  if (training_.zero_stage() == 3) shard_parameters(held, bytes);
  if (training_.zero_stage() > 1) bytes.scratch += unit_bytes(held);
  if (training_.optimizer_offload > 0) offload_optimizer(held, bytes);
  return bytes;
}

// With ZeRO 3, the 32-bit parameters are states of the optimizer, and shards of gradients are copied when they have
// been reduced (PyTorch's CPUOffloadPolicy).
void TransformerFootprint::offload_optimizer(const StageContents& held, StageBytes& bytes) const {
  bytes.optimizer -= offloaded_part(training_, bytes.optimizer);
  if (training_.zero_stage() != 3) return;
  bytes.weights -= offloaded_part(training_, sharded(held, 4));
  bytes.gradients = 0;
}

// As in `stage`.
std::string TransformerFootprint::stage_formula(std::int64_t StageBytes::*field) const {
  const bool parameters_sharded = training_.zero_stage() == 3;
  // What is left of the states of the optimizer.
  const double left = 1 - training_.optimizer_offload;
  if (field == &StageBytes::weights) {
    if (parameters_sharded && left == 0) return training_.reshards() ? "0 P" : "2 P";
    if (parameters_sharded) return training_.reshards() ? "4 P / D" : "4 P / D + 2 P";
    if (!traits_of(training_.precision).narrow()) return "2 P";
    return training_.replaces_weights() ? "2 P, narrow ones in linear layers" : "2 P and narrow copies";
  }
  if (field == &StageBytes::gradients) {
    const int bytes = training_.gradient_bytes + (training_.gradient_copy ? 2 : 0);
    if (training_.zero_stage() < 2) return fmt::format("{} P", bytes);
    return fmt::format("{} P / D", parameters_sharded ? 4 : training_.gradient_bytes);
  }
  if (field == &StageBytes::accumulated_gradients) {
    return fmt::format("{} P", training_.gradient_bytes + (training_.gradient_copy ? 2 : 0));
  }
  if (field == &StageBytes::optimizer) {
    const int bytes = training_.optimizer_bytes - (parameters_sharded ? 4 : 0);
    return fmt::format("{:.4g} P{}", left * bytes, training_.distributed_optimizer ? " / D" : "");
  }
  return "";
}

// The operands of the head's weight gradients that are deferred: its input and the gradient of the logits.
std::int64_t TransformerFootprint::deferred_bytes() const {
  if (training_.deferred_head_gradients == 0) return 0;
  const std::int64_t rows = training_.micro_batch * (training_.sequence_length / training_.cp);
  const std::int64_t words = padded_vocab(model_, training_.tp) / training_.tp;
  const std::int64_t split = training_.sequence_parallel ? training_.tp : 1;
  return std::int64_t{2} * training_.deferred_head_gradients * rows * (words + model_.hidden / split);
}

std::int64_t TransformerFootprint::parameters_of(const StageContents& held) const {
  return stage_parameters_per_device(model_, training_.tp, held, training_.expert_ranks());
}

// Bytes of one shard of the parameters, or of states of their shape.
std::int64_t TransformerFootprint::sharded(const StageContents& held, std::int64_t bytes_per_parameter) const {
  const std::int64_t experts = trained_expert_parameters_per_device(model_, training_, held);
  const auto shard = [&](std::int64_t parameters, std::int64_t ranks) {
    return (bytes_per_parameter * parameters + ranks - 1) / ranks;
  };
  const std::int64_t rest = trained_parameters_per_device(model_, training_, held) - experts;
  return shard(rest, training_.shard_ranks()) + shard(experts, training_.expert_shard_ranks());
}

// FSDP2 keeps parameters, reduced gradients and Adam moments in 32 bits, all sharded. Gathered parameters are in the
// GEMMs' precision; unless they are resharded, those of the whole stage are held.
void TransformerFootprint::shard_parameters(const StageContents& held, StageBytes& bytes) const {
  bytes.weights = sharded(held, 4) + (training_.reshards() ? 0 : bytes.gathered);
  bytes.optimizer = sharded(held, training_.optimizer_bytes - 4);
  if (training_.reduces_per_op()) bytes.gradients = sharded(held, 4);
}

// Bytes of the units of a stage that are being gathered or reduced. In the backward pass: the gathered parameters of a
// unit and of the next, which is prefetched, and of the last one of the stage, which is not resharded; the 16-bit
// gradients of a unit, and those of the previous unit in the format of the reduction. ZeRO 2 has the latter alone.
std::int64_t TransformerFootprint::unit_bytes(const StageContents& held) const {
  const std::vector<StageContents> units = sharded_units(model_, held);
  const bool reduces = training_.reduces_per_op() && training_.data_ranks() > 1;
  const bool shards = training_.zero_stage() == 3;
  const auto gathered = [&](const StageContents& unit) {
    return training_.reshards() ? gathered_parameter_bytes(model_, training_, unit) : 0;
  };
  std::int64_t most = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const bool last = i + 1 == units.size();
    std::int64_t bytes = gathered(units[i]) + (i > 0 ? gathered(units[i - 1]) : 0);
    if (!last) bytes += gathered(units.back());
    if (shards) bytes += 2 * parameters_of(units[i]);
    if (reduces) bytes += training_.gradient_bytes * parameters_of(units[last || !shards ? i : i + 1]);
    most = std::max(most, bytes);
  }
  return most;
}

std::int64_t TransformerFootprint::tied_embedding_bytes() const {
  const bool copied = std::any_of(stages_.begin(), stages_.end(),
                                  [](const StageContents& held) { return held.tied_copy || held.mtp_embedding; });
  const auto heads = std::count_if(stages_.begin(), stages_.end(), [](const StageContents& held) { return held.head; });
  if (!copied && heads < 2) return 0;
  return padded_vocab(model_, training_.tp) / training_.tp * model_.hidden * training_.gradient_bytes;
}

LayerTensors TransformerFootprint::tensors_of(int kind, bool predicts, const SliceSize& size) const {
  const TensorCall call{.training = training_,
                        .hidden = model_.hidden,
                        .tokens = size.tokens,
                        .rows = size.rows,
                        .context = size.context,
                        .sliced = size.sliced};
  LayerTensors out = layer_tensors(model_.kind(kind), model_.style(), call);
  if (!predicts) return out;
  out.front().recomputed_by = RecomputeModule::layer;  // its input is that of the projection
  add_projection_tensors(call, model_.dropout, out);
  return out;
}

template <typename Out>
void TransformerFootprint::add_head(Out& out, const StageContents& held, const SliceSize& size) const {
  const std::int64_t logits = size.rows * (padded_vocab(model_, training_.tp) / training_.tp);
  const std::int64_t passes = losses_of(model_, held);
  const std::int64_t width = split_width(size);
  out.push_back(
      {&SliceBytes::activations_to_input_gradient, "input of the final norm", "2 n h / s", passes, 2 * width});
  out.push_back({&SliceBytes::activations_to_weight_gradient, "input of the head",
                 training_.gathered_inputs ? "2 n h" : "2 n h / s", passes,
                 2 * (training_.gathered_inputs ? size.rows * model_.hidden : width)});
  if (keeps_logits()) out.push_back({&SliceBytes::kept, "logits, kept as outputs", "2 n v / t", passes, 2 * logits});
  if (training_.cross_entropy == Training::CrossEntropy::te) {
    out.push_back(
        {&SliceBytes::activations_to_weight_gradient, "logits, then their gradient", "2 n v / t", passes, 2 * logits});
    return;
  }
  out.push_back({&SliceBytes::activations_to_input_gradient, "softmax in 32 bits", "4 n v / t", passes, 4 * logits});
  out.push_back({&SliceBytes::gradients_to_weight_gradient, "gradient of the logits", "2 n v / t", passes, 2 * logits});
}

// What a shard of the output layer holds from S until T ends. With one barrier, S has the input gradient already.
template <typename Out>
void TransformerFootprint::add_vocabulary(Out& out, const SliceSize& size) const {
  const int shards = training_.vocabulary_ranks();
  const std::int64_t logits = size.rows * (padded_vocab(model_, shards) / shards);
  const bool in_place = training_.cross_entropy == Training::CrossEntropy::te;
  const auto add = [&](std::string_view name, std::string_view formula, std::int64_t bytes) {
    out.push_back({&SliceBytes::vocabulary, name, formula, 1, bytes});
  };
  add("input of the shard of the head", "2 n h / s", 2 * split_width(size));
  if (training_.vocabulary_barriers == 1) add("input gradient of the shard", "2 n h / s", 2 * split_width(size));
  if (in_place) {
    add("logits of the shard, then their gradient", "2 n v / t p", 2 * logits);
  } else {
    add("softmax of the shard in 32 bits", "4 n v / t p", 4 * logits);
    add("gradient of the logits of the shard", "2 n v / t p", 2 * logits);
  }
}

// The GEMM's output, before it is widened, and what the softmax does not overwrite; later the gradient in 16 bits. The
// last layer's workspace is not there at the same time: the larger one of both counts.
template <typename Out>
void TransformerFootprint::add_head_workspace(Out& out, const SliceSize& size) const {
  if (training_.cross_entropy == Training::CrossEntropy::te) return;
  const std::int64_t logits = size.rows * (padded_vocab(model_, training_.tp) / training_.tp);
  using Loss = Training::CrossEntropy;
  const bool whole = training_.cross_entropy != Loss::separate;
  // PyTorch's loss over a split vocabulary (torch/distributed/tensor/parallel/loss.py) has one more 32-bit tensor.
  const bool plain = training_.cross_entropy == Loss::plain;
  const bool parallel = plain && training_.tp > 1;
  const int forward = (parallel ? 10 : whole ? 6 : 2) - (keeps_logits() ? 2 : 0);  // kept ones are counted there
  const int backward = parallel ? 12 : plain ? 8 : 2;
  const auto formula = [](int bytes) {
    return bytes == 12   ? "12 n v / t"
           : bytes == 10 ? "10 n v / t"
           : bytes == 8  ? "8 n v / t"
           : bytes == 6  ? "6 n v / t"
           : bytes == 4  ? "4 n v / t"
                         : "2 n v / t";
  };
  replace_if_larger(out, {&SliceBytes::forward_workspace, whole ? "logits in 16 and 32 bits" : "logits",
                          formula(forward), 1, forward * logits});
  replace_if_larger(out, {&SliceBytes::backward_workspace,
                          plain ? "gradients of the loss and of the logits" : "gradient of the logits",
                          formula(backward), 1, backward * logits});
}

bool TransformerFootprint::keeps_logits() const { return training_.torch_pipelining && stages_.size() > 1; }

std::int64_t TransformerFootprint::split_width(const SliceSize& size) const {
  const std::int64_t ranks = training_.sequence_parallel ? training_.tp : 1;
  return (size.rows * model_.hidden + ranks - 1) / ranks;
}

template <typename Out>
void TransformerFootprint::add_forward_only(Out& out, int stage, const SliceSize& size) const {
  const StageContents& held = stages_[stage];
  const bool prefill = training_.work == Training::Work::prefill;
  const auto add = [&](int kind, bool predicts, int count) {
    std::int64_t all = 0;
    for (const LayerTensor& tensor : tensors_of(kind, predicts, size)) {
      if (tensor.life == TensorLife::gradient) continue;
      all += tensor.bytes;
      if (tensor.life != TensorLife::keys_values || !(size.sliced || prefill)) continue;
      out.push_back(
          {prefill ? &SliceBytes::kept : &SliceBytes::keys_values, tensor.name, tensor.formula, count, tensor.bytes});
    }
    replace_if_larger(out, {&SliceBytes::forward_workspace, "tensors of one layer", "their sum", 1, all});
  };
  for (const auto& [kind, count] : layers_by_kind(model_, held)) add(kind, false, count);
  if (held.mtp_layers > 0) add(model_.mtp_kind, true, held.mtp_layers);
  if (held.head && !prefill) add_head_workspace(out, size);
  add_transfers(out, stage, size);
}

// All layers of the encoder of images, or one at a time if it is frozen.
template <typename Out>
void TransformerFootprint::add_encoder(Out& out, const StageContents& held, int sequences) const {
  if (held.encoder_layers == 0) return;
  const Encoder& encoder = *model_.encoder;
  Training own = training_;
  own.tp = encoder.tensor_ranks(training_.tp);
  own.cp = 1;
  own.sequence_parallel = training_.sequence_parallel && own.tp > 1;
  const TensorCall call{.training = own,
                        .hidden = encoder.layers.hidden,
                        .tokens = encoder.patches,
                        .rows = encoder.images_per_group(training_, sequences) * encoder.patches};
  const LayerTensors layer = layer_tensors(encoder.layers.kind(0), encoder.layers.style(), call);
  if (!encoder.frozen && training_.lora_rank == 0) return add_layers(out, layer, held.encoder_layers, {}, false, 0);
  std::int64_t all = 0;
  for (const LayerTensor& tensor : layer) all += tensor.life == TensorLife::gradient ? 0 : tensor.bytes;
  replace_if_larger(out, {&SliceBytes::forward_workspace, "tensors of an encoder's layer", "their sum", 1, all});
}

template <typename Out>
void TransformerFootprint::add_slice(Out& out, int stage, const MicrobatchShape& shape, int slice) const {
  const StageContents& held = stages_[stage];
  check_countable(model_, std::max(1.0, training_.most_expert_rows(model_.experts)), held.layers + held.mtp_layers,
                  !training_.flash_attention, shape, slice);
  const std::int64_t tokens = shape.slice_lengths[slice] / training_.cp;
  const SliceSize size{.tokens = tokens,
                       .rows = tokens * shape.sequences,
                       .context = shape.context(slice),
                       .sliced = shape.num_slices() > 1};
  if (shape.forward_only) return add_forward_only(out, stage, size);
  const bool full = training_.recompute == Training::Recompute::full;
  RecomputeModules modules;
  if (full) modules = RecomputeModule::layer;
  if (training_.recompute == Training::Recompute::selective) modules = training_.recompute_modules;
  const StageContents again = recomputed_layers(model_, training_, held);
  LayerTensors layer;  // the last of the stage
  int last = held.expert_layers > 0 ? 1 : 0;
  if (!model_.flat && held.layers > 0) last = model_.pattern()[static_cast<std::size_t>(held.first + held.layers) - 1];
  // Not yet taken by a layer.
  std::int64_t received = training_.torch_pipelining && !held.embedding ? 1 : 0;
  const auto add = [&](int kind, bool predicts, int count, int recomputed) {
    if (count == 0) return;
    LayerTensors tensors = tensors_of(kind, predicts, size);
    if (recomputed > 0) add_layers(out, tensors, recomputed, modules, size.sliced, std::exchange(received, 0));
    if (count > recomputed) {
      add_layers(out, tensors, count - recomputed, full ? RecomputeModules() : modules, size.sliced,
                 std::exchange(received, 0));
    }
    if (predicts || kind == last) layer = std::move(tensors);
  };
  const KindCounts recomputed = layers_by_kind(model_, again);
  for (const auto& [kind, count] : layers_by_kind(model_, held)) {
    const auto found = std::find_if(recomputed.begin(), recomputed.end(),
                                    [of = kind](const KindCount& each) { return each.kind == of; });
    add(kind, false, count, found == recomputed.end() ? 0 : found->layers);
  }
  add(model_.mtp_kind, true, held.mtp_layers, again.mtp_layers);
  add_layer_workspace(out, layer, modules, size.sliced);
  if (held.has_encoder() && size.context == 0) add_encoder(out, held, shape.sequences);
  if (held.embedding && model_.dropout) {
    out.push_back(
        {&SliceBytes::activations_to_input_gradient, "dropout mask of the embedding", "n h / s", 1, split_width(size)});
  }
  if (held.head) {
    add_head(out, held, size);
    add_head_workspace(out, size);
  }
  if (held.vocabulary_ranks > 0) add_vocabulary(out, size);
  add_transfers(out, stage, size);
}

// After a stage with multi-token prediction, its hidden states follow those of the main model. The stages of losses
// take the last ones.
template <typename Out>
void TransformerFootprint::add_transfers(Out& out, int stage, const SliceSize& size) const {
  const StageContents& held = stages_[stage];
  const std::int64_t ranks = training_.splits_transfers() ? training_.tp : 1;
  const std::int64_t boundary = 2 * ((size.rows * model_.boundary_width() + ranks - 1) / ranks);
  const auto of_encoder = [&](const StageContents& part) {
    if (size.context > 0) return std::int64_t{0};
    const std::int64_t bytes =
        encoder_boundary_bytes(*model_.encoder, training_, static_cast<int>(size.rows / size.tokens), part);
    return model_.encoder->tp > 0 ? bytes : (bytes + ranks - 1) / ranks;
  };
  const auto only_encodes = [](const StageContents& of) { return of.has_encoder() && !of.embedding; };
  if (stage > 0 && only_encodes(stages_[stage - 1])) {
    const std::int64_t bytes = model_.encoder->frozen ? 0 : of_encoder(stages_[stage - 1]);
    out.push_back({&SliceBytes::transfer_backward, "gradients of encoded images sent", "its result", 1, bytes});
  }
  if (only_encodes(held)) {
    out.push_back({&SliceBytes::transfer_forward, "encoded images sent", "its result", 1, of_encoder(held)});
    return;
  }
  if (const int states = hidden_states_after(model_, stages_, stage); states > 0) {
    if (training_.torch_pipelining) {
      out.push_back({&SliceBytes::kept, "buffers of received gradients", "2 n h / s", 1, boundary});
    }
    out.push_back({&SliceBytes::transfer_forward, "hidden states sent", "2 n h / s", states, boundary});
  }
  if (!held.embedding) {
    if (training_.torch_pipelining) {
      out.push_back({&SliceBytes::kept, "buffers of received hidden states", "2 n h / s", 1, boundary});
    }
    out.push_back({&SliceBytes::transfer_backward, "gradients sent", "2 n h / s",
                   hidden_states_after(model_, stages_, stage - 1), boundary});
  }
}

std::vector<SliceTensor> TransformerFootprint::tensors(int stage, const MicrobatchShape& shape, int slice) const {
  std::vector<SliceTensor> out;
  add_slice(out, stage, shape, slice);
  return out;
}

SliceBytes TransformerFootprint::slice(int stage, const MicrobatchShape& shape, int slice) const {
  SliceSum sum;
  add_slice(sum, stage, shape, slice);
  return sum.bytes;
}

}  // namespace sluice::model
