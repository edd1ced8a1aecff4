#include "model/workload/transformer_footprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/errors.h"

namespace sluice {
namespace {

constexpr double kMostBytes = 1e18;

// Activations of one layer and slice, were everything kept.
struct LayerBytes {
  std::int64_t input = 0;  // the layer's input alone: a checkpoint
  std::int64_t to_input_gradient = 0;
  std::int64_t to_weight_gradient = 0;
  std::int64_t output_gradients = 0;
  std::int64_t keys_values = 0;
  std::int64_t scores = 0;
};

LayerBytes layer_bytes(const Transformer& model, const Training& training, std::int64_t tokens, std::int64_t context) {
  const std::int64_t t = training.tp;
  const std::int64_t rows = tokens;
  const std::int64_t whole = training.sequence_parallel ? t : 1;  // what tensor parallelism alone does not split
  const std::int64_t nh = (rows * model.hidden + whole - 1) / whole;
  const std::int64_t query = rows * model.query_width() / t;
  const std::int64_t key_value = rows * 2 * std::max<std::int64_t>(1, model.kv_heads / t) * model.head_dim;
  const std::int64_t mlp = rows * model.ffn_hidden / t;

  LayerBytes bytes;
  bytes.input = 2 * nh;
  bytes.to_input_gradient = 2 * (2 * nh + query + model.mlp_inputs() * mlp) + (model.dropout ? 2 * nh : 0);
  bytes.to_weight_gradient = 2 * (2 * nh + query + mlp);
  bytes.output_gradients = 2 * (2 * nh + query + key_value + model.mlp_inputs() * mlp);
  bytes.keys_values = 2 * key_value;
  if (!training.flash_attention) {
    bytes.scores = (model.dropout ? 5 : 2) * (model.heads / t) * tokens * (context + tokens);
  }
  return bytes;
}

// Refuses slices whose bytes could overflow, by more than all of them together can be. In floating point.
void check_countable(const Transformer& model, bool scored, int layers, const MicrobatchShape& shape, int slice) {
  const auto tokens = static_cast<double>(shape.slice_lengths[static_cast<std::size_t>(slice)]);
  const double rows = tokens * shape.sequences;
  const double width = model.hidden + static_cast<double>(model.query_width() + model.key_value_width()) +
                       static_cast<double>(model.mlp_inputs()) * model.ffn_hidden;
  const double scores = scored ? model.heads * rows * (static_cast<double>(shape.context(slice)) + tokens) : 0;
  const double words = static_cast<double>(padded_vocab(model, 1)) + 128;  // no fewer than are on one device
  const double bytes = 32 * ((layers + 1.0) * (rows * width + scores) + rows * words);
  if (bytes <= kMostBytes) return;
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
  const std::int64_t count =
      stage_parameters_per_device(model_, training_.tp, stages_[static_cast<std::size_t>(stage)]);
  const bool sharded = training_.distributed_optimizer;
  StageBytes bytes;
  bytes.weights = 2 * count;
  bytes.gradients = training_.gradient_bytes * count;
  bytes.optimizer = sharded ? (12 * count + training_.dp - 1) / training_.dp : 12 * count;
  bytes.reduced = bytes.gradients;
  bytes.gathered = sharded ? bytes.weights : 0;
  return bytes;
}

std::int64_t TransformerFootprint::tied_embedding_bytes() const {
  const bool copied =
      std::any_of(stages_.begin(), stages_.end(), [](const StageContents& held) { return held.tied_copy; });
  if (!copied) return 0;
  return padded_vocab(model_, training_.tp) / training_.tp * model_.hidden * training_.gradient_bytes;
}

SliceBytes TransformerFootprint::slice(int stage, const MicrobatchShape& shape, int slice) const {
  const StageContents& contents = stages_[static_cast<std::size_t>(stage)];
  check_countable(model_, !training_.flash_attention, contents.layers, shape, slice);
  const std::int64_t tokens = shape.slice_lengths[static_cast<std::size_t>(slice)];
  const std::int64_t rows = tokens * shape.sequences;
  const std::int64_t layers = contents.layers;
  const bool sliced = shape.num_slices() > 1;
  const bool full = training_.recompute == Training::Recompute::full;
  const bool keeps_scores = training_.recompute == Training::Recompute::none;

  // Everything but the scores is linear in the rows, so sequences and tokens can be taken together.
  LayerBytes layer = layer_bytes(model_, training_, rows, 0);
  layer.scores = layer_bytes(model_, training_, tokens, shape.context(slice)).scores * shape.sequences;

  SliceBytes bytes;
  bytes.gradients_to_weight_gradient = layers * layer.output_gradients;
  if (full) {
    bytes.activations_to_input_gradient = layers * layer.input;
    bytes.gradients_to_weight_gradient += layers * layer.to_weight_gradient;
    bytes.keys_values = sliced ? layers * layer.keys_values : 0;
  } else {
    bytes.activations_to_input_gradient = layers * (layer.to_input_gradient + (keeps_scores ? layer.scores : 0));
    bytes.activations_to_weight_gradient = layers * layer.to_weight_gradient;
    bytes.keys_values = layers * layer.keys_values;
  }
  if (sliced) bytes.keys_values_gradient = 2 * layers * layer.keys_values;  // in 32 bit

  if (layers > 0) {
    bytes.forward_workspace = keeps_scores ? 0 : layer.scores;
    bytes.backward_workspace = layer.output_gradients + (keeps_scores ? 0 : layer.scores);
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
    bytes.activations_to_input_gradient += 2 * width + 4 * logits;
    bytes.activations_to_weight_gradient += 2 * width;
    bytes.gradients_to_weight_gradient += 2 * logits;
    bytes.forward_workspace = std::max(bytes.forward_workspace, 2 * logits);    // the product, before it is widened
    bytes.backward_workspace = std::max(bytes.backward_workspace, 4 * logits);  // its gradient
  }

  const std::int64_t share = training_.splits_transfers() ? training_.tp : 1;
  const std::int64_t boundary = 2 * ((rows * model_.hidden + share - 1) / share);
  bytes.transfer_forward = contents.head ? 0 : boundary;
  bytes.transfer_backward = contents.embedding ? 0 : boundary;
  return bytes;
}

}  // namespace sluice
