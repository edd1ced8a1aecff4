#include <algorithm>
#include <array>
#include <filesystem>

#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/workload/transformer.h"

namespace sluice {
namespace {

constexpr std::int64_t kMaxSize = 1 << 24;    // of hidden and feed-forward sizes, positions
constexpr std::int64_t kMaxLayers = 1 << 15;  // also of heads
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 31;
constexpr std::int64_t kMaxFileBytes = 1 << 24;

int size_of(JsonReader& reader, const std::string& key) { return static_cast<int>(reader.integer(key, 1, kMaxSize)); }

int count_of(JsonReader& reader, const std::string& key) {
  return static_cast<int>(reader.integer(key, 1, kMaxLayers));
}

int size_or(JsonReader& reader, const std::string& key, std::int64_t fallback) {
  return static_cast<int>(reader.integer_or(key, 1, kMaxSize, fallback));
}

// hidden / heads, which must be whole unless `key` gives the head size.
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

// "llama3-8b" for .../llama3-8b/config.json, otherwise the file's name without .json.
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
  // The defaults are those of Hugging Face's GPT2Config.
  model.dropout = reader.number_or("resid_pdrop", 0, 1, 0.1) > 0 || reader.number_or("attn_pdrop", 0, 1, 0.1) > 0;
  return model;
}

Transformer llama(JsonReader& reader, bool qwen2) {
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
  model.qkv_bias = qwen2 || model.projection_bias;
  model.mlp_bias = reader.boolean_or("mlp_bias", false);
  model.dropout = reader.number_or("attention_dropout", 0, 1, 0) > 0;
  model.max_positions = size_or(reader, "max_position_embeddings", 0);
  return model;
}

}  // namespace

Transformer transformer_from_hf(JsonReader reader) {
  static const std::array<std::string, 4> kTypes = {"gpt2", "llama", "mistral", "qwen2"};
  const std::string type = reader.string("model_type");
  if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) {
    reader.at("model_type").fail("expected one of gpt2, llama, mistral, qwen2 (no mixture of experts)");
  }
  Transformer model = type == "gpt2" ? gpt2(reader) : llama(reader, type == "qwen2");
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
  model.dropout =
      reader.number_or("hidden_dropout", 0, 1, 0.1) > 0 || reader.number_or("attention_dropout", 0, 1, 0.1) > 0;
  reader.finish();
  check_transformer(model);
  return model;
}

Transformer read_hf_config(const std::string& path) {
  const Json json = parse_json(read_file(path, kMaxFileBytes), path);
  return transformer_from_hf(JsonReader(json, path));
}

Transformer read_model(const std::string& path) {
  const Json json = parse_json(read_file(path, kMaxFileBytes), path);
  JsonReader reader(json, path);
  return reader.has("model_type") ? transformer_from_hf(reader) : transformer_from_json(reader);
}

}  // namespace sluice
