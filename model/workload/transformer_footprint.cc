#include "model/workload/transformer_footprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/errors.h"
#include "model/workload/expert_footprint.h"

namespace sluice::model {
namespace {

constexpr double kMaxSliceBytes = 1e18;

LayerBytes layer_bytes(const Transformer& model, const Training& training, LayerKind kind, std::int64_t tokens,
                       std::int64_t context) {
  const std::int64_t t = training.tp;
  const std::int64_t rows = tokens;
  const std::int64_t whole = training.sequence_parallel ? t : 1;  // not split by tensor parallelism alone
  const std::int64_t nh = (rows * model.hidden + whole - 1) / whole;
  const std::int64_t query = rows * model.query_width() / t;
  const std::int64_t output = rows * model.value_width() / t;
  const std::int64_t key_value =
      rows * std::max<std::int64_t>(1, model.kv_heads / t) * (model.head_dim + model.value_head_dim());
  const std::int64_t mlp = kind == LayerKind::dense ? rows * model.ffn_hidden / t : 0;

  LayerBytes bytes;
  bytes.input = 2 * nh;
  bytes.to_input_gradient = 2 * (2 * nh + query + model.mlp_inputs() * mlp) + (model.dropout ? 2 * nh : 0);
  bytes.to_weight_gradient = 2 * (2 * nh + output + mlp);
  bytes.output_gradients = 2 * (2 * nh + query + key_value + model.mlp_inputs() * mlp);
  bytes.keys_values = 2 * key_value;
  if (!training.flash_attention) {
    bytes.scores = (model.dropout ? 5 : 2) * (model.heads / t) * tokens * (context + tokens);
  }
  // The heads' output of the attention, before it is sent back to the ranks of its tokens.
  if (training.cp > 1 && training.context_exchange == Training::ContextExchange::all_to_all) {
    bytes.to_input_gradient += 2 * output;
  }
  if (model.has_latent_attention()) add_latents(model, training, rows, bytes);
  if (kind == LayerKind::experts) add_experts(model, training, rows, bytes);
  return bytes;
}

LayerBytes times(std::int64_t count, const LayerBytes& one) {
  return {.input = count * one.input,
          .to_input_gradient = count * one.to_input_gradient,
          .to_weight_gradient = count * one.to_weight_gradient,
          .output_gradients = count * one.output_gradients,
          .keys_values = count * one.keys_values,
          .scores = count * one.scores};
}

LayerBytes sum(const LayerBytes& a, const LayerBytes& b) {
  return {.input = a.input + b.input,
          .to_input_gradient = a.to_input_gradient + b.to_input_gradient,
          .to_weight_gradient = a.to_weight_gradient + b.to_weight_gradient,
          .output_gradients = a.output_gradients + b.output_gradients,
          .keys_values = a.keys_values + b.keys_values,
          .scores = a.scores + b.scores};
}

// Rejects slices whose bytes could overflow, by an upper bound of all of them together, in floating point.
void check_countable(const Transformer& model, bool scored, int layers, const MicrobatchShape& shape, int slice) {
  const auto tokens = static_cast<double>(shape.slice_lengths[slice]);
  const double rows = tokens * shape.sequences;
  const double latents = 2.0 * model.latent.query_rank + 2.0 * model.latent.key_value_rank;
  const double experts =
      model.experts.per_token * (model.hidden + (model.mlp_inputs() + 1.0) * model.experts.ffn_hidden) +
      model.mlp_inputs() * (1.0 * model.experts.shared_ffn_hidden) + model.experts.count;
  const double width = model.hidden + static_cast<double>(model.query_width() + model.key_value_width()) +
                       static_cast<double>(model.mlp_inputs()) * model.ffn_hidden + latents + experts;
  const double scores = scored ? model.heads * rows * (static_cast<double>(shape.context(slice)) + tokens) : 0;
  const double words = static_cast<double>(padded_vocab(model, 1)) + 128;  // at least the number on one device
  const double bytes = 32 * ((layers + 1.0) * (rows * width + scores) + rows * words);
  if (bytes <= kMaxSliceBytes) return;
  throw InputError(
      fmt::format("{}: a slice of {:.3g} tokens in {} sequences: more bytes of activations than can be "
                  "counted",
                  model.name, tokens, shape.sequences));
}

}  // namespace

TransformerFootprint::TransformerFootprint(Transformer model, Training training, std::vector<StageContents> stages)
    : model_(std::move(model)), training_(training), stages_(std::move(stages)) {
  check_training(model_, training_);
}

StageBytes TransformerFootprint::stage(int stage) const {
  const StageContents& held = stages_[stage];
  const std::int64_t count = stage_parameters_per_device(model_, training_.tp, held, training_.ep);
  const std::int64_t experts = stage_expert_parameters_per_device(model_, held, training_.ep);
  const bool sharded = training_.distributed_optimizer;
  StageBytes bytes;
  bytes.weights = 2 * count;
  bytes.gradients = training_.gradient_bytes * count;
  const auto shard = [](std::int64_t parameters, std::int64_t ranks) { return (12 * parameters + ranks - 1) / ranks; };
  bytes.optimizer = sharded
                        ? shard(count - experts, training_.data_ranks()) + shard(experts, training_.expert_data_ranks())
                        : 12 * count;
  bytes.scratch = training_.transformer_engine ? 2 * weights_of_each_shape(held) : 0;
  bytes.reduced = bytes.gradients;
  bytes.gathered = sharded ? bytes.weights : 0;
  return bytes;
}

// Elements of the matrices of one layer of each kind, of one expert, and of the head.
std::int64_t TransformerFootprint::weights_of_each_shape(const StageContents& held) const {
  const std::int64_t tp = training_.tp;
  std::int64_t count = 0;
  if (held.layers > 0) count += attention_matrix_elements(model_) / tp;
  if (held.layers > held.expert_layers) count += mlp_matrix_elements(model_, model_.ffn_hidden) / tp;
  if (held.expert_layers > 0) {
    count += mlp_matrix_elements(model_, model_.experts.ffn_hidden) +
             mlp_matrix_elements(model_, model_.experts.shared_ffn_hidden) / tp;
  }
  if (held.head) count += padded_vocab(model_, training_.tp) / tp * model_.hidden;
  return count;
}

std::int64_t TransformerFootprint::tied_embedding_bytes() const {
  const bool copied =
      std::any_of(stages_.begin(), stages_.end(), [](const StageContents& held) { return held.tied_copy; });
  if (!copied) return 0;
  return padded_vocab(model_, training_.tp) / training_.tp * model_.hidden * training_.gradient_bytes;
}

SliceBytes TransformerFootprint::slice(int stage, const MicrobatchShape& shape, int slice) const {
  const StageContents& contents = stages_[stage];
  check_countable(model_, !training_.flash_attention, contents.layers, shape, slice);
  const std::int64_t tokens = shape.slice_lengths[slice] / training_.cp;
  const std::int64_t rows = tokens * shape.sequences;
  const std::int64_t layers = contents.layers;
  const bool sliced = shape.num_slices() > 1;
  const bool full = training_.recompute == Training::Recompute::full;
  const bool selective = training_.recompute == Training::Recompute::selective;

  // Everything but the scores is linear in the rows, so sequences and tokens are multiplied.
  const auto layer_of = [&](LayerKind kind) {
    LayerBytes layer = layer_bytes(model_, training_, kind, rows, 0);
    layer.scores = layer_bytes(model_, training_, kind, tokens, shape.context(slice)).scores * shape.sequences;
    return layer;
  };
  const LayerBytes dense = layer_of(LayerKind::dense);
  const LayerBytes experts = contents.expert_layers > 0 ? layer_of(LayerKind::experts) : LayerBytes{};
  const LayerBytes all = sum(times(layers - contents.expert_layers, dense), times(contents.expert_layers, experts));
  // The backward pass of the stage starts in its last layer, before anything has been freed.
  const LayerBytes& layer = contents.expert_layers > 0 ? experts : dense;

  SliceBytes bytes;
  bytes.gradients_to_weight_gradient = all.output_gradients;
  const StageContents again = recomputed_layers(training_, contents);
  const std::int64_t kept_experts = contents.expert_layers - again.expert_layers;
  const LayerBytes recomputed =
      sum(times(again.layers - again.expert_layers, dense), times(again.expert_layers, experts));
  const LayerBytes kept = sum(times(layers - again.layers - kept_experts, dense), times(kept_experts, experts));
  bytes.activations_to_input_gradient = kept.to_input_gradient + (selective ? 0 : kept.scores) + recomputed.input;
  bytes.activations_to_weight_gradient = kept.to_weight_gradient;
  bytes.gradients_to_weight_gradient += recomputed.to_weight_gradient;
  bytes.keys_values = kept.keys_values + (sliced ? recomputed.keys_values : 0);
  if (sliced) bytes.keys_values_gradient = 2 * all.keys_values;  // in 32 bit

  if (layers > 0) {
    const std::int64_t scores = full || selective ? layer.scores : 0;  // that are not stored
    bytes.forward_workspace = scores;
    bytes.backward_workspace = layer.output_gradients + scores;
    if (full) {
      bytes.backward_workspace +=
          layer.to_input_gradient + layer.to_weight_gradient + (sliced ? 0 : layer.keys_values) - layer.input;
    }
  }

  const std::int64_t whole = training_.sequence_parallel ? training_.tp : 1;
  const std::int64_t width = (rows * model_.hidden + whole - 1) / whole;
  if (contents.embedding && model_.dropout) bytes.activations_to_input_gradient += width;
  if (contents.head) {
    const std::int64_t logits = rows * (padded_vocab(model_, training_.tp) / training_.tp);
    bytes.activations_to_input_gradient += 2 * width;
    bytes.activations_to_weight_gradient += 2 * width;
    if (training_.fused_cross_entropy) {
      bytes.activations_to_weight_gradient += 2 * logits;  // the logits, then their gradient
    } else {
      bytes.activations_to_input_gradient += 4 * logits;
      bytes.gradients_to_weight_gradient += 2 * logits;
      bytes.forward_workspace =
          std::max(bytes.forward_workspace, 2 * logits);  // the GEMM's output, before it is widened
      bytes.backward_workspace = std::max(bytes.backward_workspace, 4 * logits);  // its gradient
    }
  }

  const std::int64_t share = training_.splits_transfers() ? training_.tp : 1;
  const std::int64_t boundary = 2 * ((rows * model_.hidden + share - 1) / share);
  bytes.transfer_forward = contents.head ? 0 : boundary;
  bytes.transfer_backward = contents.embedding ? 0 : boundary;
  return bytes;
}

}  // namespace sluice::model
