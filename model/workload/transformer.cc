#include "model/workload/transformer.h"

#include <fmt/format.h>

#include "model/errors.h"

namespace sluice::model {
namespace {

constexpr double kMostParameters = 1e14;

// Elements of a norm over `hidden`: gain, and bias unless RMS.
std::int64_t norm_parameters(const Transformer& model) { return std::int64_t{model.hidden} * (model.rms_norm ? 1 : 2); }

// Elements of the biases of an MLP (or an expert) of that width.
std::int64_t mlp_bias_elements(const Transformer& model, std::int64_t ffn_hidden) {
  return model.mlp_bias ? model.mlp_inputs() * ffn_hidden + model.hidden : 0;
}

// Parameters of one expert of a router.
std::int64_t expert_parameters(const Transformer& model) {
  return mlp_matrix_elements(model, model.experts.ffn_hidden) + mlp_bias_elements(model, model.experts.ffn_hidden);
}

}  // namespace

std::int64_t attention_matrix_elements(const Transformer& model) {
  const std::int64_t h = model.hidden;
  if (!model.has_latent_attention()) return h * (2 * model.query_width() + model.key_value_width());
  const LatentAttention& latent = model.latent;
  const std::int64_t queries =
      latent.query_rank > 0 ? latent.query_rank * (h + model.query_width()) : h * model.query_width();
  const std::int64_t down = h * (latent.key_value_rank + latent.rope_head_dim);
  const std::int64_t up = std::int64_t{latent.key_value_rank} * model.heads * latent.nope_head_dim +
                          latent.key_value_rank * model.value_width();
  return queries + down + up + model.value_width() * h;
}

std::int64_t mlp_matrix_elements(const Transformer& model, std::int64_t ffn_hidden) {
  return (model.mlp_inputs() + 1) * ffn_hidden * model.hidden;
}

std::int64_t layer_matrix_elements(const Transformer& model, LayerKind kind) {
  const Experts& experts = model.experts;
  if (kind == LayerKind::dense) return attention_matrix_elements(model) + mlp_matrix_elements(model, model.ffn_hidden);
  return active_matrix_elements(model, kind) +
         (experts.count - experts.per_token) * mlp_matrix_elements(model, experts.ffn_hidden);
}

std::int64_t active_matrix_elements(const Transformer& model, LayerKind kind) {
  if (kind == LayerKind::dense) return layer_matrix_elements(model, kind);
  const Experts& experts = model.experts;
  const std::int64_t router = std::int64_t{experts.count} * model.hidden;
  return attention_matrix_elements(model) + router +
         experts.per_token * mlp_matrix_elements(model, experts.ffn_hidden) +
         mlp_matrix_elements(model, experts.shared_ffn_hidden);
}

std::int64_t layer_parameters(const Transformer& model, LayerKind kind) {
  std::int64_t rest = 2 * norm_parameters(model);
  if (model.has_latent_attention()) {
    rest += model.latent.query_rank + model.latent.key_value_rank;
  } else if (model.qk_norm) {
    rest += std::int64_t{2} * model.head_dim;
  }
  if (model.qkv_bias) rest += model.query_width() + model.key_value_width();
  if (model.projection_bias) rest += model.hidden;
  if (kind == LayerKind::experts) {
    rest += model.experts.count * mlp_bias_elements(model, model.experts.ffn_hidden);
    if (model.experts.shared_gate) rest += model.hidden;
  } else {
    rest += mlp_bias_elements(model, model.ffn_hidden);
  }
  return layer_matrix_elements(model, kind) + rest;
}

std::int64_t routed_expert_parameters(const Transformer& model) {
  return model.experts.count * expert_parameters(model);
}

std::int64_t embedding_parameters(const Transformer& model) { return (model.vocab + model.positions) * model.hidden; }

std::int64_t head_parameters(const Transformer& model) {
  return norm_parameters(model) + (model.tied_embeddings ? 0 : model.vocab * model.hidden);
}

std::int64_t mtp_layer_parameters(const Transformer& model) {
  return 3 * norm_parameters(model) + 2 * std::int64_t{model.hidden} * model.hidden +
         layer_parameters(model, model.last_kind());
}

double largest_imbalance(const Experts& experts, int ranks) {
  if (experts.count == 0) return 1;
  return std::min<double>(ranks, static_cast<double>(experts.count) / experts.per_token);
}

std::int64_t parameters(const Transformer& model) {
  const std::int64_t dense = model.dense_layers();
  return dense * layer_parameters(model) + (model.layers - dense) * layer_parameters(model, LayerKind::experts) +
         embedding_parameters(model) + head_parameters(model);
}

std::int64_t active_parameters(const Transformer& model) {
  const std::int64_t idle = (model.experts.count - model.experts.per_token) * expert_parameters(model);
  return parameters(model) - (model.layers - model.dense_layers()) * idle;
}

double layer_model_flops(const Transformer& model, std::int64_t tokens, LayerKind kind) {
  const auto s = static_cast<double>(tokens);
  return 2 * s * static_cast<double>(active_matrix_elements(model, kind)) +
         2 * s * s * static_cast<double>(model.query_width() + model.value_width());
}

double head_model_flops(const Transformer& model, std::int64_t tokens) {
  return 2 * static_cast<double>(tokens) * model.hidden * static_cast<double>(model.vocab);
}

double mtp_layer_model_flops(const Transformer& model, std::int64_t tokens) {
  return layer_model_flops(model, tokens, model.last_kind()) +
         4 * static_cast<double>(tokens) * model.hidden * model.hidden;
}

double iteration_model_flops(const Transformer& model, std::int64_t tokens, std::int64_t sequences,
                             bool full_recompute) {
  const int dense = model.dense_layers();
  const double layers = dense * layer_model_flops(model, tokens) +
                        (model.layers - dense) * layer_model_flops(model, tokens, LayerKind::experts) +
                        model.mtp_layers * mtp_layer_model_flops(model, tokens);
  const double heads = (1 + model.mtp_layers) * head_model_flops(model, tokens);
  return static_cast<double>(sequences) * ((full_recompute ? 4 : 3) * layers + 3 * heads);
}

SliceFlops layer_slice_flops(const Transformer& model, std::int64_t tokens, std::int64_t context, LayerKind kind) {
  const auto n = static_cast<double>(tokens);
  const auto c = static_cast<double>(context);
  return {.matrices = 2 * n * static_cast<double>(active_matrix_elements(model, kind)),
          .attention = 2 * static_cast<double>(model.query_width() + model.value_width()) * n * (c + n / 2)};
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
