#include "model/workload/transformer.h"

#include <fmt/format.h>

#include "model/errors.h"

namespace sluice {
namespace {

constexpr double kMostParameters = 1e14;

// Elements of a norm over `hidden`: gain, and bias unless RMS.
std::int64_t norm_parameters(const Transformer& model) { return std::int64_t{model.hidden} * (model.rms_norm ? 1 : 2); }

}  // namespace

std::int64_t layer_matrix_elements(const Transformer& model) {
  const std::int64_t attention = 2 * model.query_width() + model.key_value_width();
  const std::int64_t mlp = std::int64_t{model.mlp_inputs() + 1} * model.ffn_hidden;
  return model.hidden * (attention + mlp);
}

std::int64_t layer_parameters(const Transformer& model) {
  std::int64_t biases = 0;
  if (model.qkv_bias) biases += model.query_width() + model.key_value_width();
  if (model.projection_bias) biases += model.hidden;
  if (model.mlp_bias) biases += std::int64_t{model.mlp_inputs()} * model.ffn_hidden + model.hidden;
  return layer_matrix_elements(model) + biases + 2 * norm_parameters(model);
}

std::int64_t embedding_parameters(const Transformer& model) { return (model.vocab + model.positions) * model.hidden; }

std::int64_t head_parameters(const Transformer& model) {
  return norm_parameters(model) + (model.tied_embeddings ? 0 : model.vocab * model.hidden);
}

std::int64_t parameters(const Transformer& model) {
  return model.layers * layer_parameters(model) + embedding_parameters(model) + head_parameters(model);
}

double layer_model_flops(const Transformer& model, std::int64_t tokens) {
  const auto s = static_cast<double>(tokens);
  return 2 * s * static_cast<double>(layer_matrix_elements(model)) +
         4 * s * s * static_cast<double>(model.query_width());
}

double head_model_flops(const Transformer& model, std::int64_t tokens) {
  return 2 * static_cast<double>(tokens) * model.hidden * static_cast<double>(model.vocab);
}

double iteration_model_flops(const Transformer& model, std::int64_t tokens, std::int64_t sequences,
                             bool full_recompute) {
  const double layers = (full_recompute ? 4 : 3) * layer_model_flops(model, tokens) * model.layers;
  return static_cast<double>(sequences) * (layers + 3 * head_model_flops(model, tokens));
}

SliceFlops layer_slice_flops(const Transformer& model, std::int64_t tokens, std::int64_t context) {
  const auto n = static_cast<double>(tokens);
  const auto c = static_cast<double>(context);
  return {.matrices = 2 * n * static_cast<double>(layer_matrix_elements(model)),
          .attention = 4 * static_cast<double>(model.query_width()) * n * (c + n / 2)};
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
  // In floating point: no product of sizes that pass above overflows in the functions of this file or their bytes.
  const double width = 2.0 * static_cast<double>(model.query_width()) + static_cast<double>(model.key_value_width()) +
                       (model.mlp_inputs() + 1.0) * model.ffn_hidden;
  const double count = model.hidden * (model.layers * width + 2.0 * static_cast<double>(model.vocab) + model.positions);
  if (count > kMostParameters) {
    throw InputError(
        fmt::format("{}: {:.2g} parameters are more than the {:.0e} allowed", model.name, count, kMostParameters));
  }
}

}  // namespace sluice
