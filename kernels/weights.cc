#include "kernels/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/carver.h"
#include "model/errors.h"

namespace sluice::kernels {
namespace {

void check_divides(const Transformer& model, const char* what, std::int64_t value, int tensor_parallel) {
  if (value % tensor_parallel == 0) return;
  throw InputError(fmt::format("{}: {} ({}) must be a multiple of the tensor-parallel size ({})", model.name, what,
                               value, tensor_parallel));
}

// Appends parameters to a list and assigns their offsets.
class Lister {
 public:
  Lister(const StageSpec& spec, WeightOffsets& out) : spec_(spec), out_(out) {}

  // Starts a new sub-buffer with the next parameter.
  void align() { out_.elements = padded(out_.elements); }

  std::int64_t replicated(std::string name, std::int64_t rows, std::int64_t columns = 1) {
    align();
    return add({.name = std::move(name),
                .all_rows = rows,
                .all_columns = columns,
                .rows = rows,
                .columns = columns,
                .decays = columns > 1,
                .counted = spec_.group_rank() == 0});
  }
  // Split by rows, with `rows` per rank. Starts at the end of the previous parameter.
  std::int64_t rows(std::string name, std::int64_t rows, std::int64_t columns = 1) {
    return add({.name = std::move(name),
                .all_rows = rows * spec_.tensor_parallel,
                .all_columns = columns,
                .first_row = rows * spec_.tensor_rank,
                .rows = rows,
                .columns = columns,
                .decays = columns > 1,
                .counted = spec_.data_rank == 0});
  }
  std::int64_t columns(std::string name, std::int64_t rows, std::int64_t columns) {
    align();
    return add({.name = std::move(name),
                .all_rows = rows,
                .all_columns = columns * spec_.tensor_parallel,
                .first_column = columns * spec_.tensor_rank,
                .rows = rows,
                .columns = columns,
                .decays = true,
                .counted = spec_.data_rank == 0});
  }
  // A matrix of a routed expert. Starts at the end of the previous parameter.
  std::int64_t of_expert(std::string name, std::int64_t rows, std::int64_t columns) {
    return add({.name = std::move(name),
                .all_rows = rows,
                .all_columns = columns,
                .rows = rows,
                .columns = columns,
                .decays = true,
                .counted = spec_.group_rank() < spec_.expert_parallel,
                .expert = true});
  }
  // Reserves rows for the padded vocabulary. Rows of padding are not parameters and stay zero.
  std::int64_t vocabulary(std::string name, const RankSizes& sizes, bool counted) {
    align();
    const std::int64_t offset = add({.name = std::move(name),
                                     .all_rows = spec_.model.vocab,
                                     .all_columns = sizes.hidden,
                                     .first_row = sizes.first_token,
                                     .rows = sizes.vocab_rows,
                                     .columns = sizes.hidden,
                                     .decays = true,
                                     .counted = counted && spec_.data_rank == 0});
    out_.elements = offset + sizes.vocab_columns * sizes.hidden;
    return offset;
  }

 private:
  std::int64_t add(Parameter parameter) {
    parameter.offset = out_.elements;
    out_.elements += parameter.size();
    out_.parameters.push_back(std::move(parameter));
    return out_.parameters.back().offset;
  }

  const StageSpec& spec_;
  WeightOffsets& out_;
};

void list_dense_mlp(const StageSpec& spec, const RankSizes& sizes, const std::string& prefix, Lister& list,
                    LayerOffsets& at) {
  const Transformer& model = spec.model;
  const std::int64_t h = sizes.hidden;
  list.align();
  if (model.gated) {
    at.up = list.rows(prefix + "mlp.gate.weight", sizes.ffn, h);
    list.rows(prefix + "mlp.up.weight", sizes.ffn, h);
  } else {
    at.up = list.rows(prefix + "mlp.up.weight", sizes.ffn, h);
  }
  if (model.mlp_bias) {
    list.align();
    if (model.gated) {
      at.up_bias = list.rows(prefix + "mlp.gate.bias", sizes.ffn);
      list.rows(prefix + "mlp.up.bias", sizes.ffn);
    } else {
      at.up_bias = list.rows(prefix + "mlp.up.bias", sizes.ffn);
    }
  }
  at.down = list.columns(prefix + "mlp.down.weight", h, sizes.ffn);
  if (model.mlp_bias) at.down_bias = list.replicated(prefix + "mlp.down.bias", h);
}

// The part of an expert layer that every rank has: router and shared experts.
void list_router(const StageSpec& spec, const RankSizes& sizes, const std::string& prefix, Lister& list,
                 LayerOffsets& at) {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t h = sizes.hidden;
  at.router = list.replicated(prefix + "mlp.router.weight", experts.count, h);
  if (experts.shared_ffn == 0) return;
  list.align();
  const std::string shared = prefix + "mlp.shared.";
  if (spec.model.gated) {
    at.shared_up = list.rows(shared + "gate.weight", experts.shared_ffn, h);
    list.rows(shared + "up.weight", experts.shared_ffn, h);
  } else {
    at.shared_up = list.rows(shared + "up.weight", experts.shared_ffn, h);
  }
  at.shared_down = list.columns(shared + "down.weight", h, experts.shared_ffn);
  if (spec.model.experts.shared_gate) at.shared_gate = list.replicated(prefix + "mlp.shared_gate.weight", 1, h);
}

void list_experts(const StageSpec& spec, const RankSizes& sizes, int layer, Lister& list, LayerOffsets& at) {
  const ExpertSizes& experts = sizes.experts;
  const std::int64_t h = sizes.hidden;
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i < experts.local; ++i) {
    const std::string prefix = fmt::format("layers.{}.mlp.experts.{}.", layer, experts.first + i);
    list.align();
    const std::int64_t up = list.of_expert(prefix + (spec.model.gated ? "gate.weight" : "up.weight"), experts.ffn, h);
    if (spec.model.gated) list.of_expert(prefix + "up.weight", experts.ffn, h);
    list.align();
    const std::int64_t down = list.of_expert(prefix + "down.weight", h, experts.ffn);
    if (i == 0) {
      at.expert_up = up;
      at.expert_down = down;
    } else {
      at.expert_stride = up - previous;
    }
    previous = up;
  }
}

LayerOffsets list_layer(const StageSpec& spec, const RankSizes& sizes, int layer, LayerKind kind, Lister& list) {
  const Transformer& model = spec.model;
  const std::int64_t h = sizes.hidden;
  const std::string prefix = fmt::format("layers.{}.", layer);
  LayerOffsets at;
  at.norm1_gain = list.replicated(prefix + "norm1.weight", h);
  if (!model.rms_norm) at.norm1_bias = list.replicated(prefix + "norm1.bias", h);

  list.align();
  at.qkv = list.rows(prefix + "attention.query.weight", sizes.query_width, h);
  list.rows(prefix + "attention.key.weight", sizes.key_width, h);
  list.rows(prefix + "attention.value.weight", sizes.key_width, h);
  if (model.qkv_bias) {
    list.align();
    at.qkv_bias = list.rows(prefix + "attention.query.bias", sizes.query_width);
    list.rows(prefix + "attention.key.bias", sizes.key_width);
    list.rows(prefix + "attention.value.bias", sizes.key_width);
  }
  at.output = list.columns(prefix + "attention.output.weight", h, sizes.query_width);
  if (model.projection_bias) at.output_bias = list.replicated(prefix + "attention.output.bias", h);

  at.norm2_gain = list.replicated(prefix + "norm2.weight", h);
  if (!model.rms_norm) at.norm2_bias = list.replicated(prefix + "norm2.bias", h);
  kind == LayerKind::dense ? list_dense_mlp(spec, sizes, prefix, list, at) : list_router(spec, sizes, prefix, list, at);
  return at;
}

ExpertSizes expert_sizes(const StageSpec& spec) {
  const Transformer& model = spec.model;
  const Experts& experts = model.experts;
  const int ranks = spec.expert_parallel;
  if (model.mlp_bias) {
    throw InputError(fmt::format("{}: the kernels do not support biases of experts (disable_bias_linear)", model.name));
  }
  if (experts.count % ranks != 0) {
    throw InputError(fmt::format("{}: experts ({}) must be a multiple of the expert-parallel size ({})", model.name,
                                 experts.count, ranks));
  }
  check_divides(model, "size of the shared experts", experts.shared_ffn_hidden, spec.tensor_parallel);
  ExpertSizes sizes;
  sizes.count = experts.count;
  sizes.per_token = experts.per_token;
  sizes.ranks = ranks;
  sizes.local = experts.count / ranks;
  sizes.first = sizes.local * spec.expert_rank();
  sizes.ffn = experts.ffn_hidden;
  sizes.up_width = sizes.ffn * model.mlp_inputs();
  sizes.shared_ffn = experts.shared_ffn_hidden / spec.tensor_parallel;
  sizes.shared_up_width = sizes.shared_ffn * model.mlp_inputs();
  return sizes;
}

}  // namespace

std::int64_t RankSizes::most_expert_rows(std::int64_t rows) const {
  return experts.ranks * most_own_rows(rows) * std::min(experts.per_token, experts.local);
}

RankSizes rank_sizes(const StageSpec& spec) {
  const Transformer& model = spec.model;
  const int t = spec.tensor_parallel;
  const auto reject = [&](const char* what) {
    throw InputError(fmt::format("{}: the kernels do not support {}", model.name, what));
  };
  if (model.has_latent_attention()) reject("latent attention");
  if (model.qk_norm) reject("normalized queries and keys");
  if (model.positions == 0 && model.head_dim % 2 != 0) reject("rotary embeddings with an odd head size");
  check_divides(model, "attention heads", model.heads, t);
  check_divides(model, "key/value heads", model.kv_heads, t);
  check_divides(model, "feed-forward size", model.ffn_hidden, t);

  RankSizes sizes;
  if (model.has_experts()) sizes.experts = expert_sizes(spec);
  sizes.tensor_parallel = t;
  sizes.hidden = model.hidden;
  sizes.heads = model.heads / t;
  sizes.kv_heads = model.kv_heads / t;
  sizes.head_dim = model.head_dim;
  sizes.query_width = sizes.heads * sizes.head_dim;
  sizes.key_width = sizes.kv_heads * sizes.head_dim;
  sizes.qkv_width = sizes.query_width + 2 * sizes.key_width;
  sizes.ffn = model.ffn_hidden / t;
  sizes.up_width = sizes.ffn * model.mlp_inputs();
  sizes.vocab_columns = padded_vocab(model.vocab, t) / t;
  const std::int64_t first = sizes.vocab_columns * spec.tensor_rank;
  sizes.first_token = std::min(first, model.vocab);
  sizes.vocab_rows = std::min(model.vocab, first + sizes.vocab_columns) - sizes.first_token;
  return sizes;
}

AttentionSizes attention_sizes(const RankSizes& sizes, const SliceShape& shape) {
  return {.sequences = shape.sequences,
          .tokens = static_cast<int>(shape.tokens),
          .heads = static_cast<int>(sizes.heads),
          .kv_heads = static_cast<int>(sizes.kv_heads),
          .head_dim = static_cast<int>(sizes.head_dim),
          .context = shape.context};
}

WeightOffsets weight_offsets(const StageSpec& spec, const RankSizes& sizes) {
  const Transformer& model = spec.model;
  WeightOffsets out;
  Lister list(spec, out);
  if (spec.contents.embedding) {
    out.word = list.vocabulary("embedding.word.weight", sizes, true);
    if (model.positions > 0) {
      out.position = list.replicated("embedding.position.weight", model.positions, sizes.hidden);
    }
  }
  const int dense = spec.contents.layers - spec.contents.expert_layers;
  for (int i = 0; i < spec.contents.layers; ++i) {
    const LayerKind kind = i < dense ? LayerKind::dense : LayerKind::experts;
    out.layers.push_back(list_layer(spec, sizes, spec.first_layer + i, kind, list));
  }
  if (spec.contents.head) {
    out.final_gain = list.replicated("final_norm.weight", sizes.hidden);
    if (!model.rms_norm) out.final_bias = list.replicated("final_norm.bias", sizes.hidden);
    if (!model.tied_embeddings) {
      out.head = list.vocabulary("head.weight", sizes, true);
    } else if (spec.contents.tied_copy) {
      out.head = list.vocabulary("embedding.word.weight", sizes, false);
    }
  }
  list.align();
  out.dense_elements = out.elements;
  for (int i = dense; i < spec.contents.layers; ++i) {
    list_experts(spec, sizes, spec.first_layer + i, list, out.layers[i]);
  }
  list.align();
  return out;
}

}  // namespace sluice::kernels
