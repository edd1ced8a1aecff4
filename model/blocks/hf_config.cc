#include "model/blocks/hf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "model/blocks/attention.h"
#include "model/blocks/compressed_attention.h"
#include "model/blocks/experts.h"
#include "model/blocks/hf_types.h"
#include "model/blocks/latent_attention.h"
#include "model/blocks/layer.h"
#include "model/blocks/layer_embedding.h"
#include "model/blocks/mlp.h"
#include "model/blocks/registry.h"
#include "model/blocks/scan.h"

namespace sluice::model {
namespace {

constexpr std::int64_t kMostVocab = std::int64_t{1} << 31;
constexpr std::int64_t kMostEmbedding = 1 << 16;  // of a layer

using QkNorm = AttentionOptions::QkNorm;
using enum HfType::Norms;
using Rope = HfType::Rope;

class HfConfig {
 public:
  HfConfig(JsonReader reader, const HfType& type) : r_(std::move(reader)), type_(type) {}

  Model read() {
    read_sizes();
    for (int i = 0; i < count_; ++i) add_layer(i);
    read_predictions();
    model_.set_layers(std::move(list_));
    return std::move(model_);
  }

 private:
  int size(const std::string& key) { return static_cast<int>(r_.integer(key, 1, kMostModelSize)); }
  int size_or(const std::string& key, std::int64_t fallback) {
    return static_cast<int>(r_.integer_or(key, 0, kMostModelSize, fallback));
  }
  int product(std::int64_t one, std::int64_t other) const {
    if (one * other > kMostModelSize) r_.fail(fmt::format("{} x {} is more than {}", one, other, kMostModelSize));
    return static_cast<int>(one * other);
  }
  // The first of these keys that the config has; throws if it has none.
  int size_of(std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (!r_.has(key)) continue;
      if (!r_.at(key).json().is_array()) return size(key);
      const std::vector<JsonReader> list = r_.at(key).elements();
      if (list.empty()) r_.at(key).fail("expected a number of each layer");
      return static_cast<int>(list.front().integer(1, kMostModelSize));
    }
    return size(*keys.begin());
  }
  bool has_any(std::initializer_list<const char*> keys) {
    return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return r_.has(key); });
  }

  void read_sizes() {
    const char* const layers = r_.has("n_layer")      ? "n_layer"
                               : r_.has("num_layers") ? "num_layers"
                                                      : "num_hidden_layers";
    count_ = r_.has("layers_block_type") ? static_cast<int>(r_.at("layers_block_type").elements().size())
                                         : static_cast<int>(r_.integer(layers, 1, kMostModelLayers));
    hidden_ = size_of({"hidden_size", "n_embed"});
    model_.name = name_of_source();
    model_.hidden = hidden_;
    model_.vocab = r_.integer("vocab_size", 1, kMostVocab);
    model_.tied_embeddings = r_.boolean_or("tie_embedding", r_.boolean_or("tie_word_embeddings", type_.tied));
    model_.rms_norm = !type_.layer_norm;
    model_.max_positions = size_or("max_position_embeddings", 0);
    if (r_.has("attn_res_block_size")) {
      model_.added_parameters = 4 * hidden_;
      model_.other_parameters = std::int64_t{2} * hidden_;
    }
    // OPT's table has two rows more than positions.
    if (type_.rope == Rope::learned) model_.positions = size("max_position_embeddings") + 2;
    if (r_.has("hc_mult")) {
      model_.streams = static_cast<int>(r_.integer("hc_mult", 1, 64));
      const std::int64_t n = model_.streams;
      if (n > 1 && !type_.mean_of_streams) model_.other_parameters += n * n * hidden_ + n + 1;
    }
    model_.other_parameters += type_.embedding_norm ? std::int64_t{2} * hidden_ : 0;
    model_.other_parameters += r_.boolean_or("lm_head_bias", type_.head_bias) ? model_.vocab : 0;
    model_.layer_embedding = static_cast<int>(r_.integer_or("hidden_size_per_layer_input", 0, kMostEmbedding, 0));
    const char* const words = "vocab_size_per_layer_input";
    if (model_.layer_embedding > 0 && r_.integer_or(words, 0, kMostVocab, model_.vocab) != model_.vocab) {
      r_.at(words).fail(fmt::format("expected the vocabulary, {}", model_.vocab));
    }
    refuse_others();
    heads_ = size_of({"num_attention_heads", "n_head"});
    kv_heads_ =
        size_or("num_key_value_heads", r_.has("multi_query") && r_.boolean_or("multi_query", false) ? 1 : heads_);
    if (type_.name == "falcon" && r_.boolean_or("new_decoder_architecture", false)) kv_heads_ = size("num_kv_heads");
    head_dim_ = size_or("head_dim", hidden_ / heads_);
    if (kv_heads_ < 1 || heads_ % kv_heads_ != 0) r_.fail("expected attention heads that key/value heads divide");
  }

  // What blocks do not have, or have always.
  void refuse_others() {
    const bool latent = r_.has("kv_lora_rank") || r_.has("q_lora_rank") || type_.name == "nemotron_h";
    const bool falcon = type_.name == "falcon";
    const std::pair<const char*, bool> modeled[] = {{"conv_bias", false},
                                                    {"mamba_proj_bias", false},
                                                    {"mamba_conv_bias", true},
                                                    {"projectors_bias", false},
                                                    {"use_bias", false},
                                                    {"use_conv_bias", true},
                                                    {latent ? "attention_bias" : "", false},
                                                    {has_experts() ? "mlp_bias" : "", false},
                                                    {"attention_out_bias", false},
                                                    {falcon ? "bias" : "", false},
                                                    {falcon ? "parallel_attn" : "", true},
                                                    {"do_layer_norm_before", true},
                                                    {"_remove_final_layer_norm", false},
                                                    {"enable_bias", true},
                                                    {"layer_norm_elementwise_affine", true},
                                                    {"qk_layernorm", false}};
    for (const auto& [key, value] : modeled) {
      if (r_.boolean_or(key, value) != value)
        r_.at(key).fail(fmt::format("expected {}: others are not modeled", value));
    }
    if (const char* const width = "word_embed_proj_dim"; size_or(width, hidden_) != hidden_) {
      r_.at(width).fail(fmt::format("expected the hidden size, {}: others are not modeled", hidden_));
    }
  }

  std::string name_of_source() const {
    const std::filesystem::path path(r_.source());
    return path.stem() == "config" && path.has_parent_path() ? path.parent_path().filename().string()
                                                             : path.stem().string();
  }

  // The element of a list with one entry per layer.
  JsonReader entry_of(JsonReader lists, const std::string& key, int layer) const {
    const std::vector<JsonReader> list = lists.at(key).elements();
    if (std::ssize(list) < std::max(count_, layer + 1)) lists.at(key).fail(fmt::format("expected {} layers", count_));
    return list[static_cast<std::size_t>(layer)];
  }
  std::string word_of(const std::string& key, int layer) { return entry_of(r_, key, layer).string(); }
  std::int64_t number_of(const std::string& key, int layer) {
    return entry_of(r_, key, layer).integer(0, kMostModelSize);
  }
  static bool lists(const JsonReader& list, int value) {
    const std::vector<JsonReader> values = list.elements();
    return std::any_of(values.begin(), values.end(),
                       [&](const JsonReader& each) { return each.integer(0, kMostModelSize) == value; });
  }

  // F full attention, W with a window, C in chunks, G delta rule, M Mamba-2, L lightning, K Kimi delta, S short
  // convolution, '-' none.
  char mixer_at(int layer) {
    for (const char* key : {"layer_types", "layers_block_type"}) {
      if (!r_.has(key)) continue;
      const std::string word = word_of(key, layer);
      if (word == "full_attention" || word == "attention" || word == "indexed_attention") return 'F';
      if (word == "sliding_attention") return 'W';
      if (word == "chunked_attention") return 'C';
      if (word == "mamba") return 'M';
      if (word == "conv") return 'S';
      if (word == "linear_attention") return type_.linear;
      if (r_.has("compress_rates") && r_.at("compress_rates").has(word)) return 'F';
      r_.at(key).fail("expected full_attention, sliding_attention, chunked_attention, linear_attention or mamba");
    }
    if (r_.has("attn_type_list")) return number_of("attn_type_list", layer) == 0 ? 'L' : 'F';
    if (r_.has("hybrid_layer_pattern")) return number_of("hybrid_layer_pattern", layer) == 1 ? 'W' : 'F';
    if (r_.has("linear_attn_config")) {
      return lists(r_.at("linear_attn_config").at("kda_layers"), layer + 1) ? 'K' : 'F';  // counted from 1
    }
    if (r_.has("use_sliding_window")) {
      const bool local = r_.boolean_or("use_sliding_window", false);
      return local && layer >= r_.integer_or("max_window_layers", 0, kMostModelLayers, 0) ? 'W' : 'F';
    }
    if (r_.has("attention_chunk_size")) return roped(layer) ? 'C' : 'F';
    if (r_.has("full_attention_interval")) {
      return (layer + 1) % r_.integer("full_attention_interval", 1, kMostModelLayers) == 0 ? 'F' : 'G';
    }
    if (r_.has("sliding_window_pattern") && r_.at("sliding_window_pattern").json().is_number()) {
      return (layer + 1) % r_.integer("sliding_window_pattern", 1, kMostModelLayers) == 0 ? 'F' : 'W';
    }
    if (type_.name == "gemma4_text" && layer + 1 == count_) return 'F';
    if (type_.pattern == "?") r_.fail("required key 'layer_types' is missing");
    return type_.pattern.empty() ? 'F' : type_.pattern[static_cast<std::size_t>(layer) % type_.pattern.size()];
  }

  // Llama 4 and SmolLM3 list 1 for layers with rotary embeddings, by default all but each fourth.
  bool roped(int layer) {
    if (r_.has("no_rope_layers") && !r_.at("no_rope_layers").elements().empty())
      return number_of("no_rope_layers", layer) == 1;
    if (type_.name == "granitemoehybrid") {
      return r_.has("position_embedding_type") && r_.string("position_embedding_type") == "rope";
    }
    if (type_.name != "llama4_text" && type_.name != "smollm3") return type_.rope == Rope::all;
    return (layer + 1) % r_.integer_or("no_rope_layer_interval", 1, kMostModelLayers, 4) != 0;
  }

  bool has_experts() { return has_any({"n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"}); }

  bool has_experts_at(int layer) {
    if (!has_experts()) return false;
    if (r_.has("enable_moe_block") && !r_.boolean_or("enable_moe_block", false)) return false;
    if (r_.has("mlp_layer_types")) return word_of("mlp_layer_types", layer) != "dense";
    if (r_.has("moe_layer_freq") && r_.at("moe_layer_freq").json().is_array())
      return number_of("moe_layer_freq", layer) == 1;
    if (r_.has("is_moe_layer")) return entry_of(r_, "is_moe_layer", layer).boolean();
    if (r_.has("moe_layers_enum")) return enumerates(r_.string("moe_layers_enum"), layer);
    if (r_.has("interleave_moe_layer_step"))
      return (layer + 1) % r_.integer("interleave_moe_layer_step", 1, kMostModelLayers) == 0;
    if (r_.has("mlp_only_layers") && lists(r_.at("mlp_only_layers"), layer)) return false;
    if (r_.has("decoder_sparse_step")) return (layer + 1) % r_.integer("decoder_sparse_step", 1, kMostModelLayers) == 0;
    if (layer < r_.integer_or("moe_layer_start_index", 0, kMostModelLayers, 0)) return false;
    if (const std::int64_t last = r_.integer_or("moe_layer_end_index", -1, kMostModelLayers, -1);
        last >= 0 && layer > last) {
      return false;
    }
    if ((layer + 1) % r_.integer_or("moe_layer_interval", 1, kMostModelLayers, 1) != 0) return false;
    if (r_.has("moe_layer_freq") && layer % r_.integer("moe_layer_freq", 1, kMostModelLayers) != 0) return false;
    return layer >= r_.integer_or("first_k_dense_replace", 0, kMostModelLayers,
                                  r_.integer_or("num_dense_layers", 0, kMostModelLayers, 0));
  }

  static bool enumerates(const std::string& text, int layer) {
    const std::string wrapped = "," + text + ",";
    return wrapped.find(fmt::format(",{},", layer)) != std::string::npos;
  }

  BlockPtr shared(const std::string& key, const std::function<BlockPtr()>& make) {
    BlockPtr& block = blocks_[key];
    if (block == nullptr) block = make();
    return block;
  }

  BlockPtr mixer(char kind, int layer) {
    if (r_.has("compress_ratios")) return compressed(number_of("compress_ratios", layer));
    if (r_.has("compress_rates")) {
      const std::string word = word_of("layer_types", layer);
      JsonReader rates = r_.at("compress_rates");
      return compressed(rates.has(word) ? rates.integer(word, 0, kMostModelSize) : 0);
    }
    if (r_.has("kv_lora_rank") && kind == 'F') return latent(layer);
    switch (kind) {
      case 'G': return shared("G", [&] { return delta(); });
      case 'K': return shared("K", [&] { return kimi_delta(); });
      case 'M': return shared("M", [&] { return mamba(); });
      case 'L': return shared("L", [&] { return lightning(); });
      case 'S': return shared("S", [&] { return short_convolution(); });
      default:
        return shared(fmt::format("{}{}{}{}", kind, roped(layer), sparse_at(layer), shares_keys(layer)),
                      [&] { return attention(kind, layer); });
    }
  }

  BlockPtr attention(char kind, int layer) {
    const bool local = kind == 'W';
    AttentionOptions out;
    out.core = {.heads = heads_, .kv_heads = kv_heads_, .head_dim = head_dim_, .value_head_dim = head_dim_};
    if (local) {
      out.core.window = size_of({"sliding_window", "sliding_window_size"});
      if (r_.has("swa_num_attention_heads")) out.core.heads = size("swa_num_attention_heads");
      // MiMo's windows have twice as many heads of keys.
      out.core.kv_heads =
          static_cast<int>(r_.integer_or("swa_num_key_value_heads", 1, kMostModelSize,
                                         std::int64_t{type_.name == "mimo_v2_flash" ? 2 : 1} * kv_heads_));
      out.core.head_dim = size_or("swa_head_dim", out.core.head_dim);
      if (r_.has("attention_other_setting")) {  // Step 3.5
        JsonReader other = r_.at("attention_other_setting");
        out.core.heads = static_cast<int>(other.integer_or("num_attention_heads", 1, kMostModelSize, out.core.heads));
        out.core.kv_heads =
            static_cast<int>(other.integer_or("num_attention_groups", 1, kMostModelSize, out.core.kv_heads));
        out.core.head_dim = static_cast<int>(other.integer_or("head_dim", 1, kMostModelSize, out.core.head_dim));
      }
    } else if (kind == 'C') {
      out.core.chunk = size("attention_chunk_size");
    }
    if (type_.name == "gemma4_text") read_gemma4(local, layer, out);
    out.core.value_head_dim =
        size_or(local && r_.has("swa_v_head_dim") ? "swa_v_head_dim" : "v_head_dim", out.core.head_dim);
    const bool keyed = r_.has("attention_bias") || r_.has("bias");
    const bool bias = r_.boolean_or("attention_bias", false) || r_.boolean_or("bias", false);
    out.qkv_bias = keyed && type_.name != "bloom" ? bias : type_.qkv_bias;
    // GLM and MiMo have biases of queries, keys and values only.
    const bool projections_too =
        type_.name != "glm4_moe" && !type_.name.starts_with("mimo") && type_.name != "seed_oss";
    out.projection_bias = keyed && projections_too ? bias : type_.projection_bias;
    out.rotary = roped(layer) || (type_.rope == Rope::windows && local);
    out.qk_norm = has_qk_norm() ? type_.qk_norm : QkNorm::none;
    if (type_.name == "glm4_moe" && r_.boolean_or("use_qk_norm", false)) out.qk_norm = QkNorm::per_head;
    out.gate = type_.gate;
    out.sinks = type_.sinks.find(kind) != std::string_view::npos;
    if (sparse_at(layer)) {
      JsonReader sparse = r_.at("sparse_attention_config");
      const auto sparse_size = [&](const char* key) {
        return static_cast<int>(sparse.integer(key, 1, kMostModelSize));
      };
      out.indexer = Indexer{.heads = sparse_size("sparse_num_index_heads"),
                            .head_dim = sparse_size("sparse_index_dim"),
                            .top_k = product(sparse_size("sparse_topk_blocks"), sparse_size("sparse_block_size")),
                            .weighted = false};
    }
    return std::make_shared<Attention>(hidden_, out);
  }

  // Full attention has heads of its own and one projection for keys and values; the last layers use those of the last
  // layer of their kind before.
  void read_gemma4(bool local, int layer, AttentionOptions& out) {
    out.shared_keys = shares_keys(layer);
    if (local) return;
    if (r_.has("num_global_key_value_heads")) out.core.kv_heads = size("num_global_key_value_heads");
    if (out.core.heads % out.core.kv_heads != 0) {
      r_.at("num_global_key_value_heads").fail("expected a divisor of the attention heads");
    }
    out.core.head_dim = size_or("global_head_dim", out.core.head_dim);
    for (const std::string& key : {fmt::format("{}", layer), fmt::format("{:02}", layer)}) {
      if (!r_.has("per_layer_config") || !r_.at("per_layer_config").has(key)) continue;
      JsonReader of = r_.at("per_layer_config").at(key);
      out.core.head_dim = static_cast<int>(of.integer_or("head_dim", 1, kMostModelSize, out.core.head_dim));
      out.core.kv_heads = static_cast<int>(of.integer_or("num_key_value_heads", 1, kMostModelSize, out.core.kv_heads));
    }
    out.keys_as_values = r_.boolean_or("attention_k_eq_v", false);
  }
  bool shares_keys(int layer) { return layer >= count_ - size_or("num_kv_shared_layers", 0); }

  bool sparse_at(int layer) {
    if (!r_.has("sparse_attention_config")) return false;
    JsonReader sparse = r_.at("sparse_attention_config");
    if (!sparse.boolean_or("use_sparse_attention", true)) return false;
    if (!sparse.has("sparse_attention_freq")) return true;
    return entry_of(sparse, "sparse_attention_freq", layer).integer(0, 1) == 1;
  }

  BlockPtr compressed(std::int64_t ratio) {
    return shared(fmt::format("compressed {}", ratio), [&] {
      CompressedAttentionOptions out{.heads = heads_,
                                     .head_dim = head_dim_,
                                     .query_rank = size("q_lora_rank"),
                                     .out_groups = size("o_groups"),
                                     .out_rank = size("o_lora_rank"),
                                     .window = size("sliding_window"),
                                     .ratio = static_cast<int>(ratio)};
      if (out.heads % out.out_groups != 0) r_.at("o_groups").fail("expected a divisor of the attention heads");
      constexpr int kIndexed = 4;  // with larger ratios all entries are attended to
      if (ratio == kIndexed) {
        out.indexer = Indexer{.heads = size("index_n_heads"),
                              .head_dim = size("index_head_dim"),
                              .top_k = size("index_topk"),
                              .ratio = kIndexed};
      }
      return std::make_shared<CompressedAttention>(hidden_, out);
    });
  }

  bool has_qk_norm() { return !r_.has("use_qk_norm") || r_.boolean_or("use_qk_norm", true); }

  LatentAttention latents() {
    LatentAttention latent;
    latent.query_rank = r_.has("q_lora_rank") ? size("q_lora_rank") : 0;
    latent.key_value_rank = size("kv_lora_rank");
    latent.nope_head_dim = size("qk_nope_head_dim");
    latent.rope_head_dim = size_or("qk_rope_head_dim", 0);
    latent.value_head_dim = size("v_head_dim");
    return latent;
  }

  // Others use the choice of an earlier layer (GLM-5.2).
  bool has_own_index(int layer) {
    if (r_.has("indexer_types")) return word_of("indexer_types", layer) != "shared";
    if (r_.has("index_topk_pattern") && r_.at("index_topk_pattern").json().is_string()) {
      const std::string pattern = r_.string("index_topk_pattern");
      return layer >= std::ssize(pattern) || pattern[static_cast<std::size_t>(layer)] != 'S';
    }
    const std::int64_t before = r_.integer_or("index_skip_topk_offset", 0, kMostModelLayers, 2) - 1;
    return std::max<std::int64_t>(layer - before, 0) % r_.integer_or("index_topk_freq", 1, kMostModelLayers, 1) == 0;
  }

  BlockPtr latent(int layer) {
    const bool indexed = r_.has("index_topk");
    const bool own = has_own_index(layer);
    return shared(fmt::format("latent {} {}", indexed, own), [&] {
      LatentAttentionOptions out{.heads = heads_, .latent = latents()};
      out.rotary = !r_.boolean_or("mla_use_nope", type_.name == "kimi_linear");
      out.gate = r_.boolean_or("mla_use_output_gate", r_.has("attn_res_block_size"));
      if (indexed) {
        out.indexer = Indexer{.heads = size("index_n_heads"),
                              .head_dim = size("index_head_dim"),
                              .top_k = size("index_topk"),
                              .own = own,
                              .pool = std::max(1, size_or("index_kpool", 1))};
      }
      return std::make_shared<LatentAttentionBlock>(hidden_, out);
    });
  }

  BlockPtr delta() {
    return std::make_shared<Scan>(hidden_, Scan::Options{.rule = Scan::Rule::gated_delta,
                                                         .heads = size("linear_num_value_heads"),
                                                         .head_dim = size("linear_value_head_dim"),
                                                         .state = size("linear_key_head_dim"),
                                                         .groups = size("linear_num_key_heads"),
                                                         .convolution = size("linear_conv_kernel_dim"),
                                                         .chunk = 64});
  }

  // Its sizes are in an object, or have names of their own.
  BlockPtr kimi_delta() {
    const bool apart = r_.has("linear_attn_config");
    JsonReader of = apart ? r_.at("linear_attn_config") : r_;
    const auto size_in = [&](const char* key) { return static_cast<int>(of.integer(key, 1, kMostModelSize)); };
    const int heads = size_in(apart ? "num_heads" : "linear_num_heads");
    const int dim = size_in(apart ? "head_dim" : "linear_head_dim");
    return std::make_shared<Scan>(
        hidden_, Scan::Options{.rule = Scan::Rule::kimi_delta,
                               .heads = heads,
                               .head_dim = dim,
                               .state = dim,
                               .groups = heads,
                               .convolution = size_in(apart ? "short_conv_kernel_size" : "linear_conv_kernel_dim"),
                               .chunk = 64,
                               .full_gate = of.boolean_or("use_full_rank_gate", false)});
  }

  BlockPtr mamba() {
    return std::make_shared<Scan>(hidden_,
                                  Scan::Options{.rule = Scan::Rule::mamba2,
                                                .heads = size_of({"mamba_num_heads", "mamba_n_heads"}),
                                                .head_dim = size_of({"mamba_head_dim", "mamba_d_head"}),
                                                .state = size_of({"ssm_state_size", "mamba_d_state"}),
                                                .groups = size_of({"n_groups", "mamba_n_groups"}),
                                                .convolution = size_of({"conv_kernel", "mamba_d_conv"}),
                                                .chunk = size_of({"chunk_size", "mamba_chunk_size"}),
                                                .norm = r_.boolean_or("mamba_rms_norm", type_.name != "falcon_h1")});
  }

  BlockPtr lightning() {
    return std::make_shared<Scan>(hidden_, Scan::Options{.rule = Scan::Rule::lightning,
                                                         .heads = heads_,
                                                         .head_dim = head_dim_,
                                                         .state = head_dim_,
                                                         .groups = heads_,
                                                         .chunk = 256});
  }

  BlockPtr short_convolution() {
    return std::make_shared<Scan>(hidden_, Scan::Options{.rule = Scan::Rule::convolution,
                                                         .heads = hidden_,
                                                         .head_dim = 1,
                                                         .groups = hidden_,
                                                         .convolution = size("conv_L_cache")});
  }

  BlockPtr mlp(int width) {
    return shared(fmt::format("mlp {}", width), [&] {
      return std::make_shared<Mlp>(
          hidden_,
          Mlp::Options{.width = width, .gated = type_.gated, .bias = r_.boolean_or("mlp_bias", type_.mlp_bias)});
    });
  }

  int dense_width() {
    for (const char* key : {"dense_intermediate_size", "intermediate_size_mlp", "ffn_dim", "ffn_hidden_size"}) {
      if (r_.has(key)) return size(key);
    }
    if (r_.has("intermediate_size")) return size_of({"intermediate_size"});
    return type_.layer_norm && !type_.gated ? 4 * hidden_ : size("intermediate_size");
  }

  BlockPtr experts() {
    return shared("experts", [&] {
      ExpertsBlock::Options out;
      out.gated = type_.gated;
      out.bias = type_.mlp_bias;
      Experts& experts = out.experts;
      experts.count = size_of({"n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"});
      experts.per_token =
          size_of({"num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k", "moe_topk", "moe_top_k"});
      experts.ffn_hidden = size_of({"moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"});
      if (experts.per_token > experts.count)
        r_.fail(fmt::format("a token cannot go to {} of {} experts", experts.per_token, experts.count));
      experts.shared_ffn_hidden = shared_width(experts.ffn_hidden);
      experts.shared_gate = type_.shared_gate;
      if (type_.clamp > 0) experts.clamp = r_.number_or("swiglu_limit", 1e-3, 1e6, type_.clamp);
      experts.groups = std::max(1, size_or("n_group", size_or("num_expert_group", 1)));
      experts.groups_per_token = std::max(1, size_or("topk_group", 1));
      out.router_bias = type_.router_bias || r_.boolean_or("router_bias", false);
      out.router_scale = type_.router_scale;
      out.zero_experts = size_or("zero_expert_num", 0);
      {
        const double real = static_cast<double>(experts.count) / out.routes();
        experts.per_token = std::max(1, static_cast<int>(std::lround(experts.per_token * real)));
      }
      out.latent = size_or("moe_latent_size", size_or("routed_expert_hidden_size", 0));
      out.latent_norm = r_.boolean_or("latent_moe_use_norm", false);
      return std::make_shared<ExpertsBlock>(hidden_, out);
    });
  }

  int shared_width(int expert_width) {
    for (const char* key : {"moe_shared_expert_intermediate_size", "shared_expert_intermediate_size",
                            "shared_intermediate_size", "share_expert_dim"}) {
      if (r_.has(key)) return size_or(key, 0);
    }
    for (const char* key : {"n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"}) {
      if (r_.has(key)) return product(size_of({key}), expert_width);
    }
    return type_.name == "llama4_text" ? expert_width : 0;
  }

  LayerStep step(std::vector<BlockPtr> blocks, int norms = 1) const {
    return {.blocks = std::move(blocks),
            .pre_norms = type_.norms == post ? 0 : norms,
            .post_norms = type_.norms == HfType::Norms::pre ? 0 : 1};
  }

  void add(std::vector<LayerStep> steps) {
    std::vector<const Block*> blocks;
    std::string name;
    for (const LayerStep& each : steps) {
      for (const BlockPtr& block : each.blocks) {
        blocks.push_back(block.get());
        name += name.empty() ? "" : ", ";
        name += block->kind();
      }
    }
    auto& index = known_[blocks];
    if (index == 0) {
      list_.kinds.push_back({.name = name, .steps = std::move(steps)});
      index = static_cast<int>(list_.kinds.size());
    }
    list_.pattern.push_back(static_cast<std::uint8_t>(index - 1));
  }

  void add_layer(int layer) {
    if (type_.name == "nemotron_h") return add_nemotron(layer);
    const BlockPtr mlp_block = has_experts_at(layer) ? experts() : mlp(dense_width());
    if (type_.name == "falcon_h1") {
      return add({step({shared("M", [&] { return mamba(); }), mixer('F', layer)}), step({mlp_block})});
    }
    const BlockPtr mixer_block = mixer(mixer_at(layer), layer);
    if (type_.name == "gemma4_text") return add_gemma4(layer, mixer_block);
    if (type_.name == "longcat_flash") {
      const BlockPtr dense = mlp(dense_width());
      return add({step({mixer_block}), step({dense, mlp_block}), step({mixer_block}), step({dense})});
    }
    if (type_.parallel_norms > 0) return add({step({mixer_block, mlp_block}, parallel_norms())});
    add({step({mixer_block}), step({mlp_block})});
  }

  // Experts beside the MLP have norms of their own, and so has the sum. The embedding of the layer follows.
  void add_gemma4(int layer, const BlockPtr& mixer_block) {
    const bool wide = shares_keys(layer) && r_.boolean_or("use_double_wide_mlp", false);
    LayerStep forward = step({mlp(dense_width() * (wide ? 2 : 1))});
    if (has_experts_at(layer)) {
      forward.blocks.push_back(experts());
      forward.pre_norms = 2;
      forward.post_norms = 3;
    }
    std::vector<LayerStep> steps = {step({mixer_block}), forward};
    if (const int width = model_.layer_embedding; width > 0) {
      const BlockPtr block =
          shared("embedding", [&] { return std::make_shared<LayerEmbedding>(hidden_, width, false); });
      steps.push_back({.blocks = {block}, .pre_norms = 0, .post_norms = 1});
    }
    add(std::move(steps));
  }

  // Falcon 40B and 180B have a norm for each of both, 11B has one.
  int parallel_norms() {
    if (type_.name != "falcon") return type_.parallel_norms;
    const bool new_decoder = r_.boolean_or("new_decoder_architecture", false);
    return static_cast<int>(r_.integer_or("num_ln_in_parallel_attn", 1, 2, new_decoder ? 2 : 1));
  }

  // Each layer is one block: M, *, - or E.
  void add_nemotron(int layer) { add({step({nemotron_block(nemotron_kind(layer), layer)})}); }

  char nemotron_kind(int layer) {
    constexpr std::pair<std::string_view, char> kKinds[] = {{"mamba", 'M'},     {"linear_attention", 'M'},
                                                            {"attention", '*'}, {"full_attention", '*'},
                                                            {"mlp", '-'},       {"moe", 'E'}};
    if (r_.has("layers_block_type")) {
      const std::string word = word_of("layers_block_type", layer);
      for (const auto& [name, kind] : kKinds) {
        if (word == name) return kind;
      }
      r_.at("layers_block_type").fail("expected mamba, attention, mlp and moe");
    }
    const std::string pattern = r_.string("hybrid_override_pattern");
    if (static_cast<int>(pattern.size()) < count_)
      r_.at("hybrid_override_pattern").fail(fmt::format("expected {} layers", count_));
    return pattern[static_cast<std::size_t>(layer)];
  }

  BlockPtr nemotron_block(char kind, int layer) {
    switch (kind) {
      case 'M': return shared("M", [&] { return mamba(); });
      case '*': return shared("*", [&] { return attention('F', layer); });
      case '-': return mlp(dense_width());
      case 'E': return experts();
      default: r_.at("hybrid_override_pattern").fail("expected M, *, - and E");
    }
  }

  void read_predictions() {
    for (const char* key : {"num_nextn_predict_layers", "mtp_num_hidden_layers"}) {
      if (r_.has(key)) model_.mtp_layers = static_cast<int>(r_.integer(key, 0, 1 << 10));
    }
    model_.mtp_kind = list_.pattern.empty() ? 0 : list_.pattern.back();
    // DeepSeek-V4 lists the kinds of these layers after the others.
    if (model_.mtp_layers > 0 && r_.has("compress_ratios") &&
        std::ssize(r_.at("compress_ratios").elements()) > count_) {
      add_layer(count_);
      model_.mtp_kind = list_.pattern.back();
      list_.pattern.pop_back();
    }
    // Nemotron's has attention and experts.
    if (model_.mtp_layers == 0 || !(r_.has("mtp_hybrid_override_pattern") || r_.has("mtp_layers_block_type"))) return;
    list_.kinds.push_back({.name = "attention, experts",
                           .steps = {step({shared("*", [&] { return attention('F', 0); })}), step({experts()})}});
    model_.mtp_kind = static_cast<int>(list_.kinds.size()) - 1;
  }

  JsonReader r_;
  const HfType& type_;
  Model model_;
  LayerList list_;
  std::map<std::string, BlockPtr> blocks_;
  std::map<std::vector<const Block*>, int> known_;  // index + 1 of a kind, by its blocks
  int count_ = 0;
  int hidden_ = 0;
  int heads_ = 0;
  int kv_heads_ = 0;
  int head_dim_ = 0;
};

}  // namespace

std::string suggested_blocks(const JsonReader& reader) {
  constexpr std::pair<const char*, const char*> kSuggested[] = {
      {"kv_lora_rank", "latent_attention"},
      {"compress_ratios", "compressed_attention"},
      {"num_attention_heads", "attention"},
      {"mamba_num_heads", "mamba2"},
      {"mamba_n_heads", "mamba2"},
      {"ssm_state_size", "mamba2"},
      {"linear_num_value_heads", "gated_delta_net"},
      {"linear_attn_config", "kimi_delta_attention"},
      {"num_experts", "experts"},
      {"n_routed_experts", "experts"},
      {"num_local_experts", "experts"},
      {"moe_num_experts", "experts"},
      {"intermediate_size", "mlp"},
  };
  std::vector<std::string> blocks;
  const Json& keys = reader.json().contains("text_config") ? reader.json().at("text_config") : reader.json();
  for (const auto& [key, block] : kSuggested) {
    const bool latent = !blocks.empty() && blocks.front() != "mamba2" && std::string_view(block) == "attention";
    if (latent || !keys.contains(key) || std::find(blocks.begin(), blocks.end(), block) != blocks.end()) continue;
    blocks.emplace_back(block);
  }
  if (blocks.empty()) return "";
  return fmt::format("its keys suggest layers of {}: write them as a list of layers (sluice.model/2, docs/formats.md)",
                     fmt::join(blocks, ", "));
}

Model model_from_hf_config(JsonReader reader) {
  const HfType& type = *find_hf_type(reader.string("model_type"));
  const bool inner = reader.has("text_config");
  const JsonReader of = inner ? reader.at("text_config") : reader;
  const Json config = with_hf_defaults(of.json(), type.name);
  JsonReader text(config, of.source(), of.pointer());
  if (!inner) return HfConfig(text, type).read();
  Model model = HfConfig(text, type).read();
  model.left_out = encoders_of(reader);
  if (reader.has("vision_config")) model.vision = encoder_of(reader.at("vision_config"));
  // Where the language model's own part does not have it.
  if (!text.has("tie_word_embeddings")) {
    model.tied_embeddings = reader.boolean_or("tie_word_embeddings", model.tied_embeddings);
  }
  return model;
}

}  // namespace sluice::model
