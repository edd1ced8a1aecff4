#include "model/cost/model_shape.h"

#include <fmt/format.h>

#include <limits>

#include "model/errors.h"

namespace sluice::model {

ModelShape model_shape_of(const Transformer& model) {
  ModelShape shape = {{"hidden_size", model.hidden},
                      {"num_attention_heads", model.heads},
                      {"num_query_groups", model.kv_heads},
                      {"kv_channels", model.head_dim},
                      {"vocab_size", model.vocab},
                      {"swiglu", model.gated ? 1 : 0},
                      {"q_lora_rank", model.latent.query_rank},
                      {"kv_lora_rank", model.latent.key_value_rank}};
  if (model.dense_layers() > 0) shape["ffn_hidden_size"] = model.ffn_hidden;
  if (!model.has_experts()) return shape;
  shape["num_experts"] = model.experts.count;
  shape["moe_router_topk"] = model.experts.per_token;
  shape["moe_ffn_hidden_size"] = model.experts.ffn_hidden;
  shape["moe_shared_expert_intermediate_size"] = model.experts.shared_ffn_hidden;
  return shape;
}

ModelShape model_shape_from_json(JsonReader reader) {
  ModelShape shape;
  // A model with all sizes.
  for (const auto& [key, unused] : model_shape_of({.layers = 2, .experts = {.count = 1, .leading_dense = 1}})) {
    reader.allow(key);
    if (reader.has(key)) shape[key] = reader.integer(key, 0, std::numeric_limits<std::int32_t>::max());
  }
  reader.finish();
  return shape;
}

void check_model_shape(const ModelShape& measured, const std::string& source, const Transformer& model) {
  for (const auto& [key, size] : model_shape_of(model)) {
    const auto found = measured.find(key);
    if (found == measured.end() || found->second == size) continue;
    throw InputError(fmt::format("{}: /shape/{}: times are of a model with {}, but {} has {}", source, key,
                                 found->second, model.name, size));
  }
}

}  // namespace sluice::model
