#include "import/megatron_hybrid.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "model/errors.h"

namespace sluice::imports {
namespace {

using Json = nlohmann::json;

class HybridModel {
 public:
  HybridModel(const Json& model, const HybridSizes& sizes) : model_(model), sizes_(sizes) {}

  Json read(std::string_view pattern) {
    const std::size_t slash = pattern.find('/');
    Json layers = Json::array();
    for (const char kind : pattern.substr(0, slash)) {
      if (kind == '|') continue;
      block(kind);
      layers.push_back(std::string(1, kind));
    }
    if (layers.empty()) throw InputError("expected a layer");
    if (const std::int64_t count = value("num_layers", layers.size()); count != std::ssize(layers)) {
      throw InputError(fmt::format("has {} layers, not the {} of --num-layers", layers.size(), count));
    }
    for (const auto& [key, argument] : {std::pair("hidden_size", "hidden-size"), std::pair("vocab_size", "vocab-size"),
                                        std::pair("num_attention_heads", "num-attention-heads")}) {
      if (!model_.contains(key)) throw InputError(fmt::format("requires --{}", argument));
    }
    Json out = {{"hidden_size", model_.at("hidden_size")},
                {"vocab_size", model_.at("vocab_size")},
                {"tied_embeddings", !flag("untie_embeddings_and_output_weights")},
                {"rms_norm", model_.value("normalization", "LayerNorm") == "RMSNorm"},
                {"layers", layers}};
    if (model_.contains("max_position_embeddings")) {
      out["max_position_embeddings"] = model_.at("max_position_embeddings");
    }
    if (sizes_.mtp_layers > 0) {
      out["mtp_layers"] = sizes_.mtp_layers;
      if (slash != std::string_view::npos) add_prediction(pattern.substr(slash + 1), out);
    }
    out["kinds"] = kinds_;
    return out;
  }

 private:
  std::int64_t value(const char* key, std::int64_t fallback) const { return model_.value(key, fallback); }
  bool flag(const char* key) const { return model_.value(key, false); }

  // One layer of multi-token prediction has all the blocks up to the next '/'.
  void add_prediction(std::string_view pattern, Json& out) {
    const std::string name = "mtp";
    Json steps = Json::array();
    for (const char kind : pattern.substr(0, pattern.find('/'))) steps.push_back(block(kind));
    kinds_[name] = steps;
    out["mtp_kind"] = name;
  }

  // The kind of layers of one letter, added where it is new.
  Json block(char kind) {
    Json& steps = kinds_[std::string(1, kind)];
    if (!steps.is_null()) return steps[0];
    switch (kind) {
      case 'M': steps = Json::array({mamba()}); break;
      case '*': steps = Json::array({attention()}); break;
      case '-': steps = Json::array({mlp()}); break;
      case 'E': steps = Json::array({experts()}); break;
      default: throw InputError(fmt::format("expected M, *, - and E, got '{}'", kind));
    }
    return steps[0];
  }

  Json mamba() const {
    const std::int64_t heads =
        sizes_.mamba_heads.value_or(2 * value("hidden_size", 0) / std::max<std::int64_t>(1, sizes_.mamba_head_dim));
    return {{"block", "mamba2"},
            {"heads", heads},
            {"head_dim", sizes_.mamba_head_dim},
            {"state", sizes_.mamba_state},
            {"groups", sizes_.mamba_groups},
            {"chunk", 128}};
  }
  Json attention() const {
    const std::int64_t heads = value("num_attention_heads", 0);
    const bool biases = !flag("disable_bias_linear");
    Json out = {{"block", "attention"},
                {"heads", heads},
                {"kv_heads", value("num_query_groups", heads)},
                {"rotary", model_.value("position_embedding_type", "none") == "rope"},
                {"qkv_bias", biases || flag("add_qkv_bias")},
                {"projection_bias", biases},
                {"qk_norm", flag("qk_layernorm") ? "per_head" : "none"}};
    if (model_.contains("kv_channels")) out["head_dim"] = model_.at("kv_channels");
    return out;
  }
  Json mlp() const {
    return {{"block", "mlp"},
            {"width", value("ffn_hidden_size", 4 * value("hidden_size", 0))},
            {"gated", flag("swiglu")},
            {"bias", !flag("disable_bias_linear")}};
  }
  Json experts() const {
    if (!model_.contains("num_experts")) throw InputError("layers of experts (E) require --num-experts");
    return {{"block", "experts"},
            {"count", model_.at("num_experts")},
            {"per_token", value("moe_router_topk", 2)},
            {"width", value("moe_ffn_hidden_size", value("ffn_hidden_size", 4 * value("hidden_size", 0)))},
            {"shared_width", value("moe_shared_expert_intermediate_size", 0)},
            {"shared_gate", flag("moe_shared_expert_gate")},
            {"gated", flag("swiglu")},
            {"bias", !flag("disable_bias_linear")},
            {"latent", sizes_.latent}};
  }

  const Json& model_;
  const HybridSizes& sizes_;
  Json kinds_ = Json::object();
};

}  // namespace

Json hybrid_model(const Json& model, std::string_view pattern, const HybridSizes& sizes) {
  return HybridModel(model, sizes).read(pattern);
}

}  // namespace sluice::imports
