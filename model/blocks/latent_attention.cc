#include "model/blocks/latent_attention.h"

#include <fmt/format.h>

#include "model/blocks/attention.h"
#include "model/errors.h"

namespace sluice::model {

using namespace kernel_parts;
using enum TensorLife;

// Elements per token on one device.
struct LatentAttentionBlock::LatentSizes {
  double query_rank;
  double key_value_rank;
  double down;    // elements that keys and values are projected down to: the latent and the positions' share
  double up;      // elements of this device's heads that they are projected up to
  double normed;  // elements of both latents' norms
  double nope;    // elements of this device's keys that come from the latent
  double query;
  double key_value;
  double output;
  double gate;
};

LatentAttentionBlock::LatentAttentionBlock(int hidden, const LatentAttentionOptions& options)
    : Block(hidden, options.dropout),
      options_(options),
      core_{.heads = options.heads,
            .kv_heads = options.heads,
            .head_dim = options.latent.nope_head_dim + options.latent.rope_head_dim,
            .value_head_dim = options.latent.value_head_dim,
            .dropout = options.dropout} {}

std::int64_t LatentAttentionBlock::matrix_elements(int tp) const {
  const LatentAttention& latent = options_.latent;
  const std::int64_t h = hidden();
  const std::int64_t heads = options_.heads / tp;
  const std::int64_t query = heads * core_.head_dim;
  const std::int64_t value = heads * core_.value_head_dim;
  const std::int64_t queries = latent.query_rank > 0 ? latent.query_rank * (h + query) : h * query;
  const std::int64_t down = h * (latent.key_value_rank + latent.rope_head_dim);
  const std::int64_t up = latent.key_value_rank * heads * latent.nope_head_dim + latent.key_value_rank * value;
  return queries + down + up + value * h + (options_.gate ? h * value : 0);
}

std::int64_t LatentAttentionBlock::indexer_matrix_elements() const {
  return options_.indexer ? options_.indexer->matrix_elements(hidden(), query_source()) : 0;
}

BlockParameters LatentAttentionBlock::parameters(const Shards& shards) const {
  BlockParameters out;
  out.all = matrix_elements(shards.tp) + options_.latent.query_rank + options_.latent.key_value_rank;
  out.linear = matrix_elements(1) / shards.tp;
  if (options_.indexer) out.all += options_.indexer->parameters(hidden(), query_source());
  return out;
}

double LatentAttentionBlock::sparse_flops(double tokens, double context) const {
  const LatentAttention& latent = options_.latent;
  return 2.0 * options_.heads * (2 * latent.key_value_rank + latent.rope_head_dim) *
         options_.indexer->chosen(tokens, context);
}

double LatentAttentionBlock::core_model_flops(std::int64_t tokens) const {
  const auto n = static_cast<double>(tokens);
  return options_.indexer ? sparse_flops(n, 0) + options_.indexer->flops(n, 0) : core_.model_flops(n);
}

double LatentAttentionBlock::core_flops(std::int64_t tokens, std::int64_t context) const {
  const auto n = static_cast<double>(tokens);
  const auto c = static_cast<double>(context);
  return options_.indexer ? sparse_flops(n, c) + options_.indexer->flops(n, c) : core_.flops(n, c);
}

LatentAttentionBlock::LatentSizes LatentAttentionBlock::sizes(const Training& training) const {
  const LatentAttention& latent = options_.latent;
  const int tp = training.tp;
  const double heads = static_cast<double>(options_.heads) / tp;
  return {.query_rank = static_cast<double>(latent.query_rank),
          .key_value_rank = static_cast<double>(latent.key_value_rank),
          .down = static_cast<double>(latent.key_value_rank + latent.rope_head_dim),
          .up = heads * latent.nope_head_dim + core_.output(tp),
          .normed = static_cast<double>(latent.query_rank + latent.key_value_rank),
          .nope = heads * latent.nope_head_dim,
          .query = core_.queries(tp),
          .key_value = core_.keys_values(tp),
          .output = core_.output(tp),
          .gate = options_.gate ? core_.output(tp) : 0};
}

// Queries are read and written, or the part of them that is rotated; of keys one part is read and all written; values
// are read and written.
void LatentAttentionBlock::add_joined_heads(std::string_view name, const BlockCall& call, const LatentSizes& l,
                                            Kernels& out) const {
  const bool fused = options_.rotary && call.training.fused_latent_rotary;
  const double queries = fused ? l.query - l.nope : l.query;
  const double keys = l.key_value - l.output;
  out.push_back(memory(name, 2 * call.sizes.rows * (2 * queries + l.nope + keys + 2 * l.output), fused ? 2 : 5));
}

void LatentAttentionBlock::add_attention(OpKind kind, const BlockCall& call, Kernels& out) const {
  if (!options_.indexer) return add_core(core_, kind, call, out);
  const double flops =
      call.slice.sum_over_documents([&](double tokens, double context) { return sparse_flops(tokens, context); });
  const LatentAttention& latent = options_.latent;
  const double heads = static_cast<double>(options_.heads) / call.training.tp;
  const double moved = call.sizes.rows * heads * (2 * latent.key_value_rank + latent.rope_head_dim);
  add_sparse_core(kind, call, flops, moved, out);
}

// Prefill keeps latents alone, so that each slice makes the keys and values of its prefix again; sparse attention reads
// latents.
void LatentAttentionBlock::add_prefix(const BlockCall& call, const LatentSizes& l, Kernels& out) const {
  if (call.training.work != Training::Work::prefill || options_.indexer) return;
  const double prefix =
      call.slice.sum_over_documents([](double /*tokens*/, double context) { return context; }) / call.training.cp;
  if (prefix == 0) return;
  add_linear(out, call.training, "KV up of the prefix", prefix, l.key_value_rank, l.up, Source::norm);
  out.push_back(memory("joined heads of the prefix", 2 * prefix * (l.nope + l.key_value + l.output), 2));
}

void LatentAttentionBlock::add_forward(const BlockCall& call, Kernels& out) const {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const LatentSizes l = sizes(training);
  const bool gathered = training.tp > 1 && training.sequence_parallel;
  if (l.query_rank > 0) add_linear(out, training, "Q down", s.split, s.hidden, l.query_rank, Source::norm);
  add_linear(out, training, "KV down", s.split, s.hidden, l.down, Source::norm);
  out.push_back(memory("norms of latents", 4 * s.split * l.normed, l.query_rank > 0 ? 2 : 1));
  if (gathered) {
    const double queries = l.query_rank > 0 ? l.query_rank : s.hidden;
    out.push_back(all_gather("all-gather of latents", 2 * s.rows * (queries + l.down)));
  }
  add_linear(out, training, "Q up", s.rows, l.query_rank > 0 ? l.query_rank : s.hidden, l.query, Source::norm);
  repeat_with(RecomputeModule::up_projection, out, out.size() - 1);
  add_linear(out, training, "KV up", s.rows, l.key_value_rank, l.up, Source::norm);
  add_joined_heads(options_.rotary ? "rotary, joined heads" : "joined heads", call, l, out);
  repeat_with(RecomputeModule::up_projection, out, out.size() - 2);
  add_prefix(call, l, out);
  if (options_.indexer) {
    options_.indexer->add_kernels(core_, static_cast<double>(query_source()), OpKind::F, call, out);
  }
  add_attention(OpKind::F, call, out);
  if (l.gate > 0) {
    add_linear(out, training, "gate projection", s.rows, s.hidden, l.gate, Source::norm);
    out.push_back(memory("attention gate", 6 * s.rows * l.output));
  }
  add_linear(out, training, "projection", s.rows, l.output, s.hidden);
  if (gathered) {
    // Latents are gathered instead of their input, so that of the all-gather and the reduce-scatter one remains.
    out.push_back(all_gather("reduce-scatter of projection", 2 * s.rows * s.hidden));
  } else {
    add_tensor_collectives(out, training, s, "all-reduce 1", {.m = s.rows, .n = l.query + l.key_value, .k = s.hidden},
                           {.m = s.rows, .n = s.hidden, .k = l.output});
  }
}

void LatentAttentionBlock::add_input_gradient(const BlockCall& call, Kernels& out) const {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const LatentSizes l = sizes(training);
  add_linear_gradient(out, training, "d projection", s.rows, s.hidden, l.output);
  if (l.gate > 0) {
    out.push_back(memory("d attention gate", 10 * s.rows * l.output));
    add_linear_gradient(out, training, "d gate projection", s.rows, l.gate, s.hidden);
  }
  add_attention(OpKind::I, call, out);
  if (options_.indexer) {
    options_.indexer->add_kernels(core_, static_cast<double>(query_source()), OpKind::I, call, out);
  }
  add_joined_heads(options_.rotary ? "d rotary, joined heads" : "d joined heads", call, l, out);
  add_linear_gradient(out, training, "d KV up", s.rows, l.up, l.key_value_rank);
  const double queries = l.query_rank > 0 ? l.query_rank : s.hidden;
  add_linear_gradient(out, training, "d Q up", s.rows, l.query, queries);
  if (training.tp > 1) {
    const double bytes = 2 * s.rows * (queries + l.down);
    out.push_back(training.sequence_parallel ? all_gather("reduce-scatter of d latents", bytes)
                                             : all_reduce("all-reduce of d latents", bytes));
  }
  out.push_back(memory("d norms of latents", 6 * s.split * l.normed, l.query_rank > 0 ? 4 : 2));
  add_linear_gradient(out, training, "d KV down", s.split, l.down, s.hidden);
  if (l.query_rank > 0) add_linear_gradient(out, training, "d Q down", s.split, l.query_rank, s.hidden);
  out.push_back(memory("sum of d down", 6 * s.split * s.hidden));
  if (training.tp > 1 && training.sequence_parallel) {
    out.push_back(all_gather("all-gather of d projection", 2 * s.rows * s.hidden));
  }
}

void LatentAttentionBlock::add_weight_gradient(const BlockCall& call, Kernels& out) const {
  const Training& training = call.training;
  const Sizes& s = call.sizes;
  const LatentSizes l = sizes(training);
  out.push_back(linear_weight(training, "w projection", s.rows, l.output, s.hidden));
  if (l.gate > 0) out.push_back(linear_weight(training, "w gate projection", s.rows, s.hidden, l.gate));
  if (options_.indexer) {
    options_.indexer->add_kernels(core_, static_cast<double>(query_source()), OpKind::W, call, out);
  }
  out.push_back(linear_weight(training, "w KV up", s.rows, l.key_value_rank, l.up));
  out.push_back(linear_weight(training, "w Q up", s.rows, l.query_rank > 0 ? l.query_rank : s.hidden, l.query));
  out.push_back(linear_weight(training, "w KV down", s.split, s.hidden, l.down));
  if (l.query_rank > 0) out.push_back(linear_weight(training, "w Q down", s.split, s.hidden, l.query_rank));
}

void LatentAttentionBlock::add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const {
  if (kind == OpKind::F) return add_forward(call, out);
  kind == OpKind::I ? add_input_gradient(call, out) : add_weight_gradient(call, out);
}

void LatentAttentionBlock::add_tensors(const TensorCall& call, LayerTensors& out) const {
  const LatentAttention& latent = options_.latent;
  const int tp = call.training.tp;
  const std::int64_t query = call.rows * core_.query_width() / tp;
  const std::int64_t output = call.rows * core_.value_width() / tp;
  const std::int64_t keys_values_elements =
      call.rows * core_.heads_of_keys(tp) * (core_.head_dim + core_.value_head_dim);
  const std::int64_t gate = options_.gate ? output : 0;
  const RecomputeModules up = recomputed_by(RecomputeModule::up_projection);
  TensorList list(call, out);
  list.operand("input of QKV", call.gathered_formula(), to_weight_gradient, call.gathered_elements(),
               recomputed_by(RecomputeModule::norm));
  // Inputs and outputs of the two latents' norms, and the positional part of the keys, equal on every tensor rank.
  // Projected down on its own shard of the tokens, then all-gathered.
  const std::int64_t normed = call.rows * (latent.query_rank + latent.key_value_rank) / call.split();
  const std::int64_t position = call.rows * latent.rope_head_dim;
  list.add("inputs of the latents' norms", "2 n (rq + rkv) / s", to_input_gradient, 2 * normed);
  list.add("positional part of the keys", "2 n dr", to_input_gradient, 2 * position);
  list.operand("latents", "p n (rq + rkv) / s", to_weight_gradient, normed, up);
  list.operand("gradients of the latents", "p n ((rq + rkv) / s + dr)", gradient, normed + position);
  if (options_.indexer) options_.indexer->add_tensors(call, list);
  list.add("queries", "2 n a d / t", to_input_gradient, 2 * query, up);
  if (call.training.work == Training::Work::prefill) {
    list.add("latents of keys and values", "2 n (rkv + dr)", keys_values,
             2 * call.rows * (latent.key_value_rank + latent.rope_head_dim));
    const std::int64_t prefix = options_.indexer ? 0 : call.sequences() * call.context / call.training.cp;
    list.add("keys and values", "2 (n + c) g (d + dv) / t", to_input_gradient,
             2 * (call.rows + prefix) * (keys_values_elements / call.rows));
  } else {
    list.add("keys and values", "2 n g (d + dv) / t", keys_values, 2 * keys_values_elements, up);
  }
  list.add("attention's gate", "2 n a dv / t, or 1 per head", to_input_gradient, 2 * gate);
  list.operand("input of the projection", "p n a dv / t", to_weight_gradient, output);
  add_output_tensors(core_, call, list);
  list.operand("gradient of the projection", "p n h / s", gradient, call.hidden_elements());
  list.operand("gradient of QKV", "p n (a d + g (d + dv)) / t", gradient, query + keys_values_elements + gate);
}

double LatentAttentionBlock::width() const {
  const double indexed = options_.indexer ? options_.indexer->width() : 0;
  return static_cast<double>(core_.query_width() + core_.key_value_width() + 2 * core_.value_width()) +
         2.0 * (options_.latent.query_rank + options_.latent.key_value_rank) + indexed;
}

void LatentAttentionBlock::check(const std::string& model, const Training& training) const {
  check_core(core_, model, training);
  check_fused("latent attention", model, training);
}

}  // namespace sluice::model
