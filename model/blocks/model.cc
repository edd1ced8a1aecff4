#include "model/blocks/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "model/blocks/attention.h"
#include "model/blocks/encoder.h"
#include "model/blocks/experts.h"
#include "model/blocks/latent_attention.h"
#include "model/blocks/layer.h"
#include "model/blocks/mlp.h"
#include "model/errors.h"

namespace sluice::model {
namespace {

constexpr double kMostParameters = 1e14;

BlockPtr mixer_of(const Transformer& model) {
  if (model.has_latent_attention()) {
    return std::make_shared<LatentAttentionBlock>(
        model.hidden, LatentAttentionOptions{.heads = model.heads, .latent = model.latent, .dropout = model.dropout});
  }
  const AttentionCore core{.heads = model.heads,
                           .kv_heads = model.kv_heads,
                           .head_dim = model.head_dim,
                           .value_head_dim = model.head_dim,
                           .dropout = model.dropout};
  return std::make_shared<Attention>(
      model.hidden,
      AttentionOptions{.core = core,
                       .qkv_bias = model.qkv_bias,
                       .projection_bias = model.projection_bias,
                       .rotary = model.positions == 0,
                       .qk_norm = model.qk_norm ? AttentionOptions::QkNorm::per_head : AttentionOptions::QkNorm::none});
}

std::size_t index_of(int layer) { return static_cast<std::size_t>(layer); }

// Of the layers of a pattern.
template <typename Result>
Result sum_over_layers(const Model& model, const auto& of_kind) {
  Result sum = 0;
  const std::vector<int> counts = model.kinds_of(0, model.layers);
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    if (counts[kind] > 0) sum += static_cast<Result>(counts[kind]) * of_kind(static_cast<int>(kind));
  }
  return sum;
}

}  // namespace

Model::Model(const Transformer& transformer)
    : name(transformer.name),
      hidden(transformer.hidden),
      vocab(transformer.vocab),
      positions(transformer.positions),
      tied_embeddings(transformer.tied_embeddings),
      rms_norm(transformer.rms_norm),
      dropout(transformer.dropout),
      max_positions(transformer.max_positions),
      mtp_layers(transformer.mtp_layers),
      flat(std::make_shared<Transformer>(transformer)) {
  const BlockPtr mixer = mixer_of(transformer);
  LayerList list;
  const auto add_kind = [&](std::string kind, BlockPtr mlp) {
    list.kinds.push_back({.name = std::move(kind), .steps = {{.blocks = {mixer}}, {.blocks = {std::move(mlp)}}}});
  };
  add_kind("layer", std::make_shared<Mlp>(hidden, Mlp::Options{.width = transformer.ffn_hidden,
                                                               .gated = transformer.gated,
                                                               .bias = transformer.mlp_bias,
                                                               .dropout = dropout}));
  if (transformer.has_experts()) {
    add_kind("MoE layer", std::make_shared<ExpertsBlock>(hidden, ExpertsBlock::Options{.experts = transformer.experts,
                                                                                       .gated = transformer.gated,
                                                                                       .bias = transformer.mlp_bias,
                                                                                       .dropout = dropout}));
  }
  for (int layer = 0; layer < transformer.layers; ++layer) {
    list.pattern.push_back(static_cast<std::uint8_t>(transformer.layer_kind(layer)));
  }
  mtp_kind = static_cast<int>(transformer.last_kind());
  set_layers(std::move(list));
}

const std::vector<Layer>& Model::kinds() const { return list_->kinds; }
const Layer& Model::kind(KindIndex index) const { return list_->kinds[static_cast<std::size_t>(index.value)]; }
const std::vector<std::uint8_t>& Model::pattern() const { return list_->pattern; }

LayerStyle Model::style() const {
  return {.hidden = hidden,
          .rms_norm = rms_norm,
          .dropout = dropout,
          .added_parameters = added_parameters,
          .streams = streams};
}

bool Model::any_block(const std::function<bool(const Block&)>& holds) const {
  for (std::size_t index = 0; index < kinds().size(); ++index) {
    if (!uses(static_cast<int>(index))) continue;
    for (const LayerStep& step : kinds()[index].steps) {
      for (const BlockPtr& block : step.blocks) {
        if (holds(*block)) return true;
      }
    }
  }
  return false;
}

int Model::expert_layers(int first, int count) const {
  return list_->experts_before[index_of(first + count)] - list_->experts_before[index_of(first)];
}

bool Model::uses(int kind) const {
  return (mtp_layers > 0 && mtp_kind == kind) ||
         std::find(pattern().begin(), pattern().end(), static_cast<std::uint8_t>(kind)) != pattern().end();
}

void Model::set_name(const std::string& text) {
  name = text;
  if (!flat) return;
  Transformer renamed = *flat;
  renamed.name = text;
  flat = std::make_shared<Transformer>(std::move(renamed));
}

void Model::set_mtp_layers(int count) {
  mtp_layers = count;
  if (!flat) return;
  Transformer changed = *flat;
  changed.mtp_layers = count;
  check_transformer(changed);
  flat = std::make_shared<Transformer>(std::move(changed));
}

const Transformer& Model::transformer(std::string_view what) const {
  if (flat) return *flat;
  std::string kind = "layers of this kind";
  any_block([&](const Block& block) {
    const auto* const attention = dynamic_cast<const Attention*>(&block);
    const bool windows =
        attention != nullptr && (attention->options().core.window > 0 || attention->options().core.chunk > 0);
    const bool plain = attention != nullptr || block.kind() == "mlp" || block.kind() == "experts";
    if (windows) kind = "attention with a window";
    if (!plain) kind = block.kind();
    return windows || !plain;
  });
  throw InputError(fmt::format("{}: {}: {} is not supported", name, what, kind));
}

std::vector<int> Model::kinds_of(int first, int count) const {
  std::vector<int> out(kinds().size(), 0);
  for (int layer = first; layer < first + count; ++layer) ++out[pattern()[index_of(layer)]];
  return out;
}

int Model::alike(int first, int count) const {
  const auto begin = pattern().begin();
  const auto same = std::search(begin, begin + first + count, begin + first, begin + first + count);
  return static_cast<int>(same - begin);
}

int Model::alike_in_any_order(int first, int count) const {
  std::array<int, kMostKinds> missing{};  // numbers of layers of each kind, less those from `first` on
  int different = 0;                      // kinds of which the numbers differ
  const auto add = [&](int layer, int number) {
    int& of = missing[pattern()[index_of(layer)]];
    different += of == 0 ? 1 : of == -number ? -1 : 0;
    of += number;
  };
  for (int layer = 0; layer < count; ++layer) {
    add(layer, 1);
    add(first + layer, -1);
  }
  int same = 0;
  while (different > 0) {
    add(same, -1);
    add(same + count, 1);
    ++same;
  }
  return same;
}

void Model::set_layers(LayerList list) {
  list.experts_before.assign(1, 0);
  for (const std::uint8_t kind : list.pattern) {
    list.experts_before.push_back(list.experts_before.back() + (list.kinds[kind].has_experts() ? 1 : 0));
  }
  list_ = std::make_shared<LayerList>(std::move(list));
  layers = static_cast<int>(pattern().size());
  if (layers < 1) throw InputError(fmt::format("{}: layers must be at least 1, got {}", name, layers));
  if (kinds().size() > kMostKinds) {
    throw InputError(fmt::format("{}: {} kinds of layers, at most {} are supported", name, kinds().size(), kMostKinds));
  }
  experts = {};
  tensor_units = 0;
  double count = 0;
  any_block([&](const Block& block) {
    tensor_units = std::gcd(tensor_units, block.tensor_units());
    const auto* const found = dynamic_cast<const ExpertsBlock*>(&block);
    if (found != nullptr && found->options().experts.count > experts.count) experts = found->options().experts;
    return false;
  });
  for (const std::uint8_t index : pattern()) {
    for (const LayerStep& step : kind(index).steps) {
      for (const BlockPtr& block : step.blocks) count += static_cast<double>(block->parameters({}).all);
    }
  }
  if (count > kMostParameters) {
    throw InputError(
        fmt::format("{}: {:.2g} parameters are more than the {:.0e} allowed", name, count, kMostParameters));
  }
}

std::int64_t layer_parameters(const Model& model, KindIndex kind) {
  return layer_parameters(model.kind(kind), model.style(), {}).all;
}

std::int64_t layer_embedding_parameters(const Model& model, std::int64_t words) {
  return std::int64_t{model.layer_embedding} * (model.layers * (words + model.hidden) + 1);
}

std::int64_t embedding_parameters(const Model& model) {
  return (model.vocab + model.positions) * model.hidden + layer_embedding_parameters(model, model.vocab);
}

std::int64_t head_parameters(const Model& model) {
  return model.style().norm_parameters() + (model.tied_embeddings ? 0 : model.vocab * model.hidden);
}

std::int64_t mtp_layer_parameters(const Model& model) {
  return 3 * model.style().norm_parameters() + 2 * std::int64_t{model.hidden} * model.hidden +
         layer_parameters(model, model.mtp_kind);
}

std::int64_t parameters(const Model& model) {
  return sum_over_layers<std::int64_t>(model, [&](int kind) { return layer_parameters(model, kind); }) +
         embedding_parameters(model) + head_parameters(model) + model.other_parameters;
}

std::int64_t active_parameters(const Model& model) {
  return parameters(model) -
         sum_over_layers<std::int64_t>(model, [&](int kind) { return idle_parameters(model.kind(kind)); });
}

double layer_model_flops(const Model& model, std::int64_t tokens, KindIndex kind) {
  const Layer& layer = model.kind(kind);
  return 2 * static_cast<double>(tokens) * static_cast<double>(active_matrix_elements(layer)) +
         core_model_flops(layer, tokens);
}

double head_model_flops(const Model& model, std::int64_t tokens) {
  return 2 * static_cast<double>(tokens) * model.hidden * static_cast<double>(model.vocab);
}

double mtp_layer_model_flops(const Model& model, std::int64_t tokens) {
  return layer_model_flops(model, tokens, model.mtp_kind) +
         4 * static_cast<double>(tokens) * model.hidden * model.hidden;
}

double iteration_model_flops(const Model& model, std::int64_t tokens, std::int64_t sequences, bool full_recompute) {
  double layers = sum_over_layers<double>(model, [&](int kind) { return layer_model_flops(model, tokens, kind); });
  if (model.mtp_layers > 0) layers += model.mtp_layers * mtp_layer_model_flops(model, tokens);
  const double heads = (1 + model.mtp_layers) * head_model_flops(model, tokens);
  const double encoder = model.encoder ? (model.encoder->frozen ? 1 : 3) * encoder_model_flops(*model.encoder) : 0;
  return static_cast<double>(sequences) * ((full_recompute ? 4 : 3) * layers + 3 * heads + encoder);
}

SliceFlops layer_slice_flops(const Model& model, std::int64_t tokens, std::int64_t context, KindIndex kind) {
  const Layer& layer = model.kind(kind);
  return {.matrices = 2 * static_cast<double>(tokens) * static_cast<double>(active_matrix_elements(layer)),
          .attention = core_flops(layer, tokens, context)};
}

SliceFlops slice_flops(const Model& model, std::int64_t tokens, std::int64_t context) {
  SliceFlops sum;
  const std::vector<int> counts = model.kinds_of(0, model.layers);
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    if (counts[kind] == 0) continue;
    const SliceFlops each = layer_slice_flops(model, tokens, context, static_cast<int>(kind));
    sum += {.matrices = counts[kind] * each.matrices, .attention = counts[kind] * each.attention};
  }
  return sum;
}

}  // namespace sluice::model
