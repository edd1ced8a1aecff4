#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "model/input/json_reader.h"
#include "model/workload/transformer.h"

namespace sluice::model {
namespace {

constexpr std::int64_t kMaxSize = 1 << 24;    // of hidden and feed-forward sizes and positions
constexpr std::int64_t kMaxLayers = 1 << 15;  // also of heads
constexpr std::int64_t kMaxPredictedTokens = 1 << 10;
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 31;

int size_of(JsonReader& reader, const std::string& key) { return static_cast<int>(reader.integer(key, 1, kMaxSize)); }

int count_of(JsonReader& reader, const std::string& key) {
  return static_cast<int>(reader.integer(key, 1, kMaxLayers));
}

int size_or(JsonReader& reader, const std::string& key, std::int64_t fallback) {
  return static_cast<int>(reader.integer_or(key, 1, kMaxSize, fallback));
}

// Returns hidden / heads, which must be an integer unless `key` has the head size.
int head_size(JsonReader& reader, const std::string& key, int hidden, int heads) {
  if (!reader.has(key) && hidden % heads != 0) {
    reader.fail("expected a hidden size that is a multiple of the attention heads, or '" + key + "'");
  }
  return size_or(reader, key, hidden / heads);
}

int kv_heads_of(JsonReader& reader, const std::string& key, int heads) {
  const int kv_heads = size_or(reader, key, heads);
  if (heads % kv_heads != 0) reader.at(key).fail("expected a divisor of the attention heads");
  return kv_heads;
}

// Returns "llama3-8b" for .../llama3-8b/config.json, otherwise the file's name without .json.
std::string name_of(const std::string& source) {
  const std::filesystem::path path(source);
  return path.stem() == "config" && path.has_parent_path() ? path.parent_path().filename().string()
                                                           : path.stem().string();
}

Transformer gpt2(JsonReader& reader) {
  Transformer model;
  model.layers = count_of(reader, "n_layer");
  model.hidden = size_of(reader, "n_embd");
  model.heads = model.kv_heads = count_of(reader, "n_head");
  if (model.hidden % model.heads != 0) reader.at("n_head").fail("expected a divisor of n_embd");
  model.head_dim = model.hidden / model.heads;
  model.ffn_hidden = size_or(reader, "n_inner", std::int64_t{4} * model.hidden);
  model.vocab = reader.integer("vocab_size", 1, kMaxVocab);
  model.positions = model.max_positions = size_of(reader, "n_positions");
  model.tied_embeddings = reader.boolean_or("tie_word_embeddings", true);
  if (reader.boolean_or("add_cross_attention", false)) {
    reader.at("add_cross_attention").fail("expected false: attention to an encoder is not modeled");
  }
  // The defaults are those of Hugging Face's GPT2Config.
  model.dropout = reader.number_or("resid_pdrop", 0, 1, 0.1) > 0 || reader.number_or("attn_pdrop", 0, 1, 0.1) > 0;
  return model;
}

constexpr std::int64_t kMaxExperts = 1 << 16;

int experts_of(JsonReader& reader, const std::string& key, std::int64_t low = 1) {
  return static_cast<int>(reader.integer(key, low, kMaxExperts));
}

// Rejects any value but `value` of an optional key, since others are not modeled.
void expect_only(JsonReader& reader, const std::string& key, std::int64_t value, const char* what) {
  if (!reader.has(key) || reader.integer(key, -kMaxSize, kMaxSize) == value) return;
  reader.at(key).fail(fmt::format("expected {}: {}", value, what));
}

// Reads the keys that the models of Hugging Face derived from Llama have in common.
Transformer llama(JsonReader& reader, const std::string& type) {
  const bool qwen2 = type.starts_with("qwen2");
  Transformer model;
  model.layers = count_of(reader, "num_hidden_layers");
  model.hidden = size_of(reader, "hidden_size");
  model.heads = count_of(reader, "num_attention_heads");
  model.kv_heads = kv_heads_of(reader, "num_key_value_heads", model.heads);
  model.head_dim = head_size(reader, "head_dim", model.hidden, model.heads);
  model.ffn_hidden = size_of(reader, "intermediate_size");
  model.gated = true;
  model.vocab = reader.integer("vocab_size", 1, kMaxVocab);
  model.tied_embeddings = reader.boolean_or("tie_word_embeddings", false);
  model.rms_norm = true;
  model.projection_bias = reader.boolean_or("attention_bias", false);
  model.qkv_bias = (qwen2 && reader.boolean_or("qkv_bias", true)) || model.projection_bias;
  model.qk_norm = type.starts_with("qwen3");
  model.mlp_bias = reader.boolean_or("mlp_bias", false);
  model.dropout = reader.number_or("attention_dropout", 0, 1, 0) > 0;
  model.max_positions = size_or(reader, "max_position_embeddings", 0);
  return model;
}

// Reads the number of experts of a token.
int experts_per_token(JsonReader& reader, const std::string& key, const Experts& experts) {
  return static_cast<int>(reader.integer(key, 1, experts.count));
}

// Both keys or neither; a token's experts lie in `per_token` of the groups.
void read_expert_groups(JsonReader& reader, const std::string& count, const std::string& per_token, Experts& experts) {
  for (const std::string& key : {count, per_token}) reader.allow(key);
  if (!reader.has(count) && !reader.has(per_token)) return;
  if (!reader.has(count)) reader.at(per_token).fail(fmt::format("requires {}", count));
  if (!reader.has(per_token)) reader.at(count).fail(fmt::format("requires {}", per_token));
  experts.groups = static_cast<int>(reader.integer(count, 1, experts.count));
  if (experts.count % experts.groups != 0) {
    reader.at(count).fail(fmt::format("expected a divisor of {} experts", experts.count));
  }
  experts.groups_per_token = static_cast<int>(reader.integer(per_token, 1, experts.groups));
  const std::int64_t reached = std::int64_t{experts.groups_per_token} * (experts.count / experts.groups);
  if (reached < experts.per_token) {
    reader.at(per_token).fail(
        fmt::format("{} experts are in these groups, less than the {} of a token", reached, experts.per_token));
  }
}

// All layers of Qwen's mixtures have experts, except for those listed in the file.
void read_qwen_experts(JsonReader& reader, bool shared, Transformer& model) {
  Experts& experts = model.experts;
  experts.count = experts_of(reader, reader.has("num_local_experts") ? "num_local_experts" : "num_experts");
  experts.per_token = experts_per_token(reader, "num_experts_per_tok", experts);
  experts.ffn_hidden = size_of(reader, "moe_intermediate_size");
  if (shared) {
    experts.shared_ffn_hidden = size_of(reader, "shared_expert_intermediate_size");
    experts.shared_gate = true;
    if (model.mlp_bias) reader.at("mlp_bias").fail("expected false: shared experts with biases are not modeled");
  }
  expect_only(reader, "decoder_sparse_step", 1, "experts in every layer");
  if (!reader.has("mlp_only_layers")) return;
  for (const JsonReader& layer : reader.at("mlp_only_layers").elements()) {
    if (layer.integer(0, kMaxLayers) != experts.leading_dense) layer.fail("dense layers are modeled at the front only");
    ++experts.leading_dense;
  }
  if (experts.leading_dense >= model.layers) reader.at("mlp_only_layers").fail("expected a layer with experts");
}

void read_deepseek(JsonReader& reader, Transformer& model) {
  Experts& experts = model.experts;
  experts.count = experts_of(reader, "n_routed_experts");
  experts.per_token = experts_per_token(reader, "num_experts_per_tok", experts);
  experts.ffn_hidden = size_of(reader, "moe_intermediate_size");
  const std::int64_t shared = reader.has("n_shared_experts") ? reader.integer("n_shared_experts", 0, 1024) : 0;
  if (shared * experts.ffn_hidden > kMaxSize) {
    reader.at("n_shared_experts").fail(fmt::format("expected a feed-forward size of at most {} in all", kMaxSize));
  }
  experts.shared_ffn_hidden = static_cast<int>(shared * experts.ffn_hidden);
  if (model.mlp_bias && shared > 0) {
    reader.at("mlp_bias").fail("expected false: shared experts with biases are not modeled");
  }
  experts.leading_dense = static_cast<int>(reader.integer("first_k_dense_replace", 0, model.layers - 1));
  read_expert_groups(reader, "n_group", "topk_group", experts);
  expect_only(reader, "moe_layer_freq", 1, "experts in every layer after the leading dense ones");
  if (reader.has("num_nextn_predict_layers")) {
    model.mtp_layers = static_cast<int>(reader.integer("num_nextn_predict_layers", 0, kMaxPredictedTokens));
  }
  LatentAttention& latent = model.latent;
  latent.query_rank = reader.has("q_lora_rank") ? size_of(reader, "q_lora_rank") : 0;
  latent.key_value_rank = size_of(reader, "kv_lora_rank");
  latent.nope_head_dim = size_of(reader, "qk_nope_head_dim");
  latent.rope_head_dim = size_of(reader, "qk_rope_head_dim");
  latent.value_head_dim = size_of(reader, "v_head_dim");
  model.head_dim = latent.nope_head_dim + latent.rope_head_dim;
  if (model.projection_bias) {
    reader.at("attention_bias").fail("expected false: latent attention with biases is not modeled");
  }
  if (model.kv_heads != model.heads) {
    reader.at("num_key_value_heads").fail("expected as many as attention heads, since attention is latent");
  }
}

// Megatron-LM's moe_layer_freq: 1, or a list with 0 (dense) or 1 (experts) per layer.
int leading_dense_layers(const JsonReader& layers, int num_layers) {
  if (layers.json().is_number()) {
    if (layers.integer(1, kMaxLayers) != 1) layers.fail("expected 1, or a list: dense layers are modeled at the front");
    return 0;
  }
  const std::vector<JsonReader> list = layers.elements();
  if (list.size() == 1 && list[0].integer(0, 1) == 1) return 0;  // the flag is always a list
  if (static_cast<int>(list.size()) != num_layers)
    layers.fail(fmt::format("expected one number per layer, {}", num_layers));
  int dense = 0;
  for (int i = 0; i < num_layers; ++i) {
    const JsonReader& layer = list[i];
    if (layer.integer(0, 1) == 1) continue;
    if (dense != i) layer.fail("expected 1: dense layers are modeled at the front only");
    ++dense;
  }
  return dense;
}

void read_megatron_experts(JsonReader& reader, Transformer& model) {
  static const std::array<const char*, 8> kNeedExperts = {
      "moe_router_topk",       "activation_func_clamp_value",         "moe_ffn_hidden_size",    "moe_router_num_groups",
      "moe_router_group_topk", "moe_shared_expert_intermediate_size", "moe_shared_expert_gate", "moe_layer_freq"};
  for (const char* key : kNeedExperts) {
    reader.allow(key);
    if (reader.has(key) && !reader.has("num_experts")) reader.at(key).fail("requires num_experts");
  }
  reader.allow("num_experts");
  if (!reader.has("num_experts")) return;
  Experts& experts = model.experts;
  experts.count = experts_of(reader, "num_experts");
  reader.allow("moe_router_topk");
  if (reader.has("moe_router_topk")) {
    experts.per_token = experts_per_token(reader, "moe_router_topk", experts);
  } else {
    experts.per_token = 2;
    if (experts.count == 1) reader.at("num_experts").fail("expected at least 2, the default of moe_router_topk");
  }
  experts.ffn_hidden = size_or(reader, "moe_ffn_hidden_size", model.ffn_hidden);
  experts.shared_ffn_hidden = size_or(reader, "moe_shared_expert_intermediate_size", 0);
  experts.shared_gate = reader.boolean_or("moe_shared_expert_gate", false);
  if (experts.shared_gate && experts.shared_ffn_hidden == 0) {
    reader.at("moe_shared_expert_gate").fail("requires moe_shared_expert_intermediate_size");
  }
  if (reader.has("activation_func_clamp_value")) {
    experts.clamp = reader.number_or("activation_func_clamp_value", 1e-3, 1e6, 0);
    if (!model.gated) reader.at("activation_func_clamp_value").fail("requires swiglu");
  }
  if (experts.shared_ffn_hidden > 0 && model.mlp_bias) {
    reader.at("moe_shared_expert_intermediate_size").fail("requires disable_bias_linear");
  }
  read_expert_groups(reader, "moe_router_num_groups", "moe_router_group_topk", experts);
  if (reader.has("moe_layer_freq")) {
    const JsonReader layers = reader.at("moe_layer_freq");
    experts.leading_dense = leading_dense_layers(layers, model.layers);
    if (experts.leading_dense >= model.layers) layers.fail("expected a layer with experts (1)");
  }
}

void read_megatron_latents(JsonReader& reader, Transformer& model) {
  static const std::array<const char*, 5> kNeedLatents = {"q_lora_rank", "kv_lora_rank", "qk_head_dim",
                                                          "qk_pos_emb_head_dim", "v_head_dim"};
  if (!reader.boolean_or("multi_latent_attention", false)) {
    for (const char* key : kNeedLatents) {
      reader.allow(key);
      if (reader.has(key)) reader.at(key).fail("requires multi_latent_attention");
    }
    return;
  }
  if (model.projection_bias) reader.at("multi_latent_attention").fail("requires disable_bias_linear");
  if (model.qkv_bias) reader.at("add_qkv_bias").fail("expected false: latent attention with biases is not modeled");
  LatentAttention& latent = model.latent;
  reader.allow("q_lora_rank");
  latent.query_rank = reader.has("q_lora_rank") ? size_of(reader, "q_lora_rank") : 0;
  latent.key_value_rank = size_of(reader, "kv_lora_rank");
  latent.nope_head_dim = size_of(reader, "qk_head_dim");
  latent.rope_head_dim = size_of(reader, "qk_pos_emb_head_dim");
  latent.value_head_dim = size_of(reader, "v_head_dim");
  model.head_dim = latent.nope_head_dim + latent.rope_head_dim;
  if (model.kv_heads != model.heads) {
    reader.at("num_query_groups").fail("expected as many as attention heads, since attention is latent");
  }
}

}  // namespace

const std::vector<std::string>& transformer_types() {
  static const std::vector<std::string> types = {"gpt2",    "llama",     "mistral",   "qwen2",       "qwen3",
                                                 "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3"};
  return types;
}

Transformer transformer_from_hf(JsonReader reader) {
  const std::vector<std::string>& types = transformer_types();
  const std::string type = reader.string("model_type");
  if (std::find(types.begin(), types.end(), type) == types.end()) {
    reader.at("model_type").fail(fmt::format("expected one of {}", fmt::join(types, ", ")));
  }
  Transformer model = type == "gpt2" ? gpt2(reader) : llama(reader, type);
  if (type == "mixtral") {
    model.experts = {.count = experts_of(reader, "num_local_experts"), .ffn_hidden = model.ffn_hidden};
    model.experts.per_token = experts_per_token(reader, "num_experts_per_tok", model.experts);
  } else if (type.ends_with("_moe")) {
    read_qwen_experts(reader, type == "qwen2_moe", model);
  } else if (type.starts_with("deepseek")) {
    read_deepseek(reader, model);
  }
  model.name = name_of(reader.source());
  check_transformer(model);
  return model;
}

Transformer transformer_from_json(JsonReader reader) {
  static const std::array<std::string, 4> kPositions = {"learned", "learned_absolute", "rope", "none"};
  static const std::array<std::string, 2> kNorms = {"LayerNorm", "RMSNorm"};
  Transformer model;
  model.name = reader.string_or("name", name_of(reader.source()));
  model.layers = count_of(reader, "num_layers");
  model.hidden = size_of(reader, "hidden_size");
  model.heads = count_of(reader, "num_attention_heads");
  model.kv_heads = kv_heads_of(reader, "num_query_groups", model.heads);
  model.head_dim = head_size(reader, "kv_channels", model.hidden, model.heads);
  model.gated = reader.boolean_or("swiglu", false);
  model.ffn_hidden =
      model.gated ? size_of(reader, "ffn_hidden_size") : size_or(reader, "ffn_hidden_size", 4LL * model.hidden);
  model.vocab = reader.integer("vocab_size", 1, kMaxVocab);
  const std::string positions =
      reader.has("position_embedding_type") ? reader.at("position_embedding_type").one_of(kPositions) : "learned";
  if (positions.starts_with("learned")) {
    model.positions = model.max_positions = size_of(reader, "max_position_embeddings");
  } else {
    model.max_positions = size_or(reader, "max_position_embeddings", 0);
  }
  model.tied_embeddings = !reader.boolean_or("untie_embeddings_and_output_weights", false);
  model.rms_norm = reader.has("normalization") && reader.at("normalization").one_of(kNorms) == "RMSNorm";
  const bool biases = !reader.boolean_or("disable_bias_linear", false);
  model.qkv_bias = reader.boolean_or("add_qkv_bias", false) || biases;
  model.projection_bias = model.mlp_bias = biases;
  const double hidden_dropout = reader.number_or("hidden_dropout", 0, 1, 0.1);
  const double attention_dropout = reader.number_or("attention_dropout", 0, 1, 0.1);
  model.dropout = hidden_dropout > 0 || attention_dropout > 0;
  model.qk_norm = reader.boolean_or("qk_layernorm", false);
  model.mtp_layers = static_cast<int>(reader.integer_or("mtp_num_layers", 0, kMaxPredictedTokens, 0));
  read_megatron_experts(reader, model);
  read_megatron_latents(reader, model);
  reader.finish();
  check_transformer(model);
  return model;
}

}  // namespace sluice::model
