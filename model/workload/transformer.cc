#include "model/workload/transformer.h"

#include <fmt/format.h>

#include "model/errors.h"

namespace sluice::model {
namespace {

constexpr double kMostParameters = 1e14;

}  // namespace

double largest_imbalance(const Experts& experts, int ranks) {
  if (experts.count == 0) return 1;
  return std::min<double>(ranks, static_cast<double>(experts.count) / experts.per_token);
}

void check_transformer(const Transformer& model) {
  const auto positive = [&](std::int64_t value, const char* what) {
    if (value < 1) throw InputError(fmt::format("{}: {} must be at least 1, got {}", model.name, what, value));
  };
  positive(model.layers, "layers");
  positive(model.hidden, "hidden size");
  positive(model.heads, "attention heads");
  positive(model.kv_heads, "key/value heads");
  positive(model.head_dim, "head size");
  positive(model.ffn_hidden, "feed-forward size");
  positive(model.vocab, "vocabulary");
  if (model.heads % model.kv_heads != 0) {
    throw InputError(fmt::format("{}: attention heads ({}) must be a multiple of key/value heads ({})", model.name,
                                 model.heads, model.kv_heads));
  }
  const Experts& experts = model.experts;
  if (model.has_experts()) {
    positive(experts.per_token, "experts of a token");
    positive(experts.ffn_hidden, "feed-forward size of an expert");
    if (experts.per_token > experts.count) {
      throw InputError(
          fmt::format("{}: a token cannot go to {} of {} experts", model.name, experts.per_token, experts.count));
    }
    if (experts.leading_dense >= model.layers) {
      throw InputError(fmt::format("{}: {} dense layers leave none of the {} layers for experts", model.name,
                                   experts.leading_dense, model.layers));
    }
    if (model.mlp_bias && experts.shared_ffn_hidden > 0) {
      throw InputError(fmt::format("{}: shared experts with biases are not modeled", model.name));
    }
  }
  const LatentAttention& latent = model.latent;
  if (model.has_latent_attention()) {
    positive(latent.nope_head_dim, "head size without position");
    positive(latent.rope_head_dim, "head size with position");
    positive(latent.value_head_dim, "head size of values");
    if (model.qkv_bias || model.projection_bias) {
      throw InputError(fmt::format("{}: latent attention with biases is not modeled", model.name));
    }
  }
  // In floating point: sizes below this limit do not overflow in this file or in the computation of bytes.
  const double h = model.hidden;
  const double mlp = h * (model.mlp_inputs() + 1.0);
  const double latents = (latent.query_rank + latent.key_value_rank) * (h + static_cast<double>(model.query_width()));
  const double attention =
      h * (2.0 * static_cast<double>(model.query_width()) + static_cast<double>(model.key_value_width())) + 2 * latents;
  const double routed = 1.0 * experts.count * (mlp * experts.ffn_hidden + h) + mlp * experts.shared_ffn_hidden;
  const double count = (1.0 * model.layers + model.mtp_layers) * (attention + mlp * model.ffn_hidden + routed) +
                       2 * h * h * model.mtp_layers + h * (2.0 * static_cast<double>(model.vocab) + model.positions);
  if (count > kMostParameters) {
    throw InputError(
        fmt::format("{}: {:.2g} parameters are more than the {:.0e} allowed", model.name, count, kMostParameters));
  }
}

}  // namespace sluice::model
