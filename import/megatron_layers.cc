#include "import/megatron_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "import/layer_frequency.h"
#include "import/megatron_values.h"
#include "model/errors.h"

namespace sluice::imports {
namespace {

using Json = nlohmann::json;

class LayerReader : MegatronValues {
 public:
  LayerReader(const Json& model, const std::map<std::string, MegatronArgument>& arguments, const std::string& source)
      : MegatronValues(source), model_(model) {
    arguments_ = arguments;
  }

  MegatronLayers read() {
    read_variant();
    read_window();
    experts_ = model_.contains("num_experts");
    for (const char* pattern : {"hybrid-layer-pattern", "hybrid-override-pattern"}) {
      if (has(pattern)) return hybrid(pattern);
    }
    const bool layered = !variant_.empty() || window_ > 0 || sinks() || has("attention-output-gate") ||
                         has("head-wise-attn-gate") || has("no-rope-freq") ||
                         (experts_ && (whole("moe-latent-size").value_or(0) > 0 || !leading_dense()));
    if (!layered) return {};
    return gpt();
  }

 private:
  std::int64_t value(const char* key, std::int64_t fallback) const { return model_.value(key, fallback); }
  bool flag(const char* key) const { return model_.value(key, false); }
  bool biases() const { return !flag("disable_bias_linear"); }
  bool latent() const { return flag("multi_latent_attention"); }
  // The softmax that is off by one has a constant in place of the learned sinks: no parameters, and no other kernels.
  bool sinks() const {
    const std::string type = has("softmax-type") ? word("softmax-type") : "vanilla";
    if (type != "vanilla" && type != "off-by-one" && type != "learnable") {
      fail("softmax-type", fmt::format("expected vanilla, off-by-one or learnable, got '{}'", type));
    }
    return type == "learnable";
  }
  std::int64_t required(const char* name) const {
    if (!has(name)) fail(name, "required");
    return *positive(name);
  }

  void read_variant() {
    variant_ = has("experimental-attention-variant") ? word("experimental-attention-variant")
                                                     : word("linear-attention-type");  // its older name
    if (variant_ == "None") variant_.clear();
    if (variant_ != "gated_delta_net" && variant_ != "dsa" && !variant_.empty()) {
      fail("experimental-attention-variant", fmt::format("expected gated_delta_net or dsa, got '{}'", variant_));
    }
    if (variant_ == "dsa" && !latent()) fail("experimental-attention-variant", "dsa requires --multi-latent-attention");
  }

  // The keys before a query, which has its own as well: "127,0", "(127, 0)" or "[127, 0]". -1: all keys.
  void read_window() {
    if (!has("window-size") || word("window-size") == "None") return;
    std::string text = fmt::format("{}", fmt::join(arguments_.at("window-size").words, ","));
    std::erase_if(text, [](char c) { return std::string_view("()[] '\"").find(c) != std::string_view::npos; });
    const std::size_t comma = std::min(text.find(','), text.size());
    const auto before = megatron_number<std::int64_t>(text.substr(0, comma));
    if (!before || *before < -1 || *before > kMostNumber) {
      fail("window-size", fmt::format("expected two numbers of keys, such as 127,0, got '{}'", word("window-size")));
    }
    if (const std::string after = text.substr(std::min(comma + 1, text.size())); after != "0" && after != "-1") {
      fail("window-size", "expected 0 keys after a query, which causal attention does not have");
    }
    window_ = *before + 1;
  }

  // A number of each layer: of a list, or of a number N, which gives `nth` to each N-th layer and the other to the
  // rest.
  std::vector<int> frequency(const char* name, std::int64_t layers, int nth) const {
    Json list;
    try {
      list = layer_frequency(word(name));
    } catch (const InputError& error) {
      fail(name, error.what());
    }
    std::vector<int> out;
    if (list.is_array()) {
      out = list.get<std::vector<int>>();
      if (std::ssize(out) != layers) fail(name, fmt::format("expected one number per layer, {}", layers));
      return out;
    }
    const int every = list.get<int>();
    if (every < 1) fail(name, "expected a positive number");
    for (int i = 1; i <= layers; ++i) out.push_back(i % every == 0 ? nth : 1 - nth);
    return out;
  }
  std::vector<int> frequency_or(const char* name, std::int64_t layers, int nth, int fallback) const {
    if (has(name) && word(name) != "None") return frequency(name, layers, nth);
    return std::vector<int>(static_cast<std::size_t>(layers), fallback);
  }

  // 1 for each layer with experts.
  std::vector<int> expert_layers(std::int64_t layers) const {
    if (!experts_ || !model_.contains("moe_layer_freq")) {
      return std::vector<int>(static_cast<std::size_t>(layers), experts_ ? 1 : 0);
    }
    const Json& given = model_.at("moe_layer_freq");
    std::vector<int> out;
    if (given.is_array() && given.size() > 1) {
      if (std::ssize(given) != layers) fail("moe-layer-freq", fmt::format("expected one number per layer, {}", layers));
      return given.get<std::vector<int>>();
    }
    const int every = std::max(1, given.is_array() ? given.at(0).get<int>() : given.get<int>());
    for (int i = 0; i < layers; ++i) out.push_back(i % every == 0 ? 1 : 0);
    return out;
  }
  bool leading_dense() const {
    if (!model_.contains("num_layers")) return true;
    if (const std::int64_t most = 1 << 15; value("num_layers", 0) > most) return true;  // the model reports it
    const Json given = model_.value("moe_layer_freq", Json(1));
    if (given.is_array() && std::ssize(given) != value("num_layers", 0)) return true;  // also this
    const std::vector<int> list = expert_layers(value("num_layers", 0));
    return std::is_sorted(list.begin(), list.end());
  }

  // The keys of a model besides its layers.
  Json start() const {
    for (const auto& [key, argument] : {std::pair("hidden_size", "hidden-size"), std::pair("vocab_size", "vocab-size"),
                                        std::pair("num_attention_heads", "num-attention-heads")}) {
      if (!model_.contains(key)) fail(argument, "required");
    }
    Json out = {{"hidden_size", model_.at("hidden_size")},
                {"vocab_size", model_.at("vocab_size")},
                {"tied_embeddings", !flag("untie_embeddings_and_output_weights")},
                {"rms_norm", model_.value("normalization", "LayerNorm") == "RMSNorm"},
                {"dropout", model_.value("hidden_dropout", 0.1) > 0 || model_.value("attention_dropout", 0.1) > 0}};
    if (model_.contains("max_position_embeddings")) {
      out["max_position_embeddings"] = model_.at("max_position_embeddings");
    }
    return out;
  }

  MegatronLayers gpt() {
    const std::int64_t layers = required("num-layers");
    if (layers > 1 << 15) fail("num-layers", "expected at most 32768");
    const bool linear = variant_ == "gated_delta_net";
    if (linear && !has("linear-attention-freq")) fail("linear-attention-freq", "required");
    const std::vector<int> scans = linear ? frequency("linear-attention-freq", layers, 0) : std::vector<int>(layers, 0);
    const std::vector<int> windows = frequency_or("window-attn-skip-freq", layers, 0, 1);
    const std::vector<int> unrotated = frequency_or("no-rope-freq", layers, 1, 0);
    const std::vector<int> experts = expert_layers(layers);
    MegatronLayers out{.model = start(), .stage_layers = {}};
    Json& names = out.model["layers"] = Json::array();
    for (int i = 0; i < layers; ++i) {
      const auto at = static_cast<std::size_t>(i);
      Json mixer;
      std::string name = "attention";
      if (scans[at] == 1) {
        mixer = block('G');
        name = "scan";
      } else if (latent()) {
        mixer = block(variant_ == "dsa" ? 'D' : '+');
        if (shares_indices(i + 1)) {
          mixer["index_shared"] = true;
          name = "shared indices";
        }
      } else {
        mixer = block('*');
        if (window_ > 0 && windows[at] == 1) {
          mixer["window"] = window_;
          name = "window";
        }
        if (unrotated[at] == 1) {
          mixer["rotary"] = false;
          name += ", no rotary";
        }
      }
      const char mlp = experts[at] == 1 ? 'E' : '-';
      name += mlp == 'E' ? ", experts" : ", mlp";
      out.model["kinds"][name] = Json::array({mixer, block(mlp)});
      names.push_back(name);
    }
    if (model_.value("position_embedding_type", "none").starts_with("learned")) {
      out.model["learned_positions"] = model_.value("max_position_embeddings", Json(0));
    }
    if (const std::int64_t predicted = whole("mtp-num-layers").value_or(0); predicted > 0) {
      out.model["mtp_layers"] = predicted;
    }
    return out;
  }

  // Layers are counted from 1.
  bool shares_indices(std::int64_t layer) const {
    const std::int64_t every = positive("dsa-indexer-topk-freq").value_or(1);
    const std::int64_t before = std::max<std::int64_t>(1, whole("dsa-indexer-skip-topk-offset").value_or(0));
    return variant_ == "dsa" && std::max<std::int64_t>(layer - before, 0) % every != 0;
  }

  MegatronLayers hybrid(const char* argument) {
    const std::string pattern = word(argument);
    const std::size_t slash = pattern.find('/');
    MegatronLayers out{.model = start(), .stage_layers = {0}};
    Json& kinds = out.model["kinds"];
    Json& layers = out.model["layers"] = Json::array();
    const auto add = [&](char letter, Json& steps) {
      try {
        steps.push_back(block(letter));
      } catch (const InputError&) {
        if (std::string_view("MG*+D-E").find(letter) != std::string_view::npos) throw;
        fail(argument, fmt::format("expected M, G, *, +, D, - and E, got '{}'", letter));
      }
    };
    for (const char letter : pattern.substr(0, slash)) {
      if (letter == '|') {
        out.stage_layers.push_back(0);
        continue;
      }
      const std::string name(1, letter);
      if (!kinds.contains(name)) add(letter, kinds[name]);
      if (letter == 'D' && shares_indices(static_cast<std::int64_t>(layers.size()) + 1)) {
        fail("dsa-indexer-topk-freq", "shared indices in a pattern of layers are not modeled");
      }
      layers.push_back(name);
      ++out.stage_layers.back();
    }
    if (layers.empty()) fail(argument, "expected a layer");
    if (const std::int64_t count = value("num_layers", layers.size()); count != std::ssize(layers)) {
      fail(argument, fmt::format("has {} layers, not the {} of --num-layers", layers.size(), count));
    }
    if (out.stage_layers.size() == 1) out.stage_layers.clear();
    add_predictions(slash == std::string::npos ? "" : pattern.substr(slash + 1), add, out.model);
    return out;
  }

  // One layer of multi-token prediction has all the blocks up to the next '/'.
  template <typename Add>
  void add_predictions(std::string predicted, const Add& add, Json& out) const {
    std::int64_t count = whole("mtp-num-layers").value_or(0);
    if (!predicted.empty() && !has("mtp-num-layers")) count = std::count(predicted.begin(), predicted.end(), '/') + 1;
    if (predicted.empty()) predicted = word("mtp-hybrid-override-pattern");
    if (count < 1) return;
    out["mtp_layers"] = count;
    if (predicted.empty()) return;
    for (const char letter : predicted.substr(0, predicted.find('/'))) add(letter, out["kinds"]["mtp"]);
    out["mtp_kind"] = "mtp";
  }

  Json block(char letter) const {
    switch (letter) {
      case 'M': return mamba();
      case 'G': return delta();
      case '*': return attention();
      case '+': return latent_attention(false);
      case 'D': return latent_attention(true);
      case '-':
        return {{"block", "mlp"},
                {"width", value("ffn_hidden_size", 4 * value("hidden_size", 0))},
                {"gated", flag("swiglu")},
                {"bias", biases()}};
      case 'E': return experts();
      default: throw InputError(fmt::format("unknown letter {}", letter));
    }
  }

  Json mamba() const {
    const std::int64_t head_dim = positive("mamba-head-dim").value_or(64);
    return {{"block", "mamba2"},
            {"heads", positive("mamba-num-heads").value_or(2 * value("hidden_size", 0) / head_dim)},
            {"head_dim", head_dim},
            {"state", positive("mamba-state-dim").value_or(128)},
            {"groups", positive("mamba-num-groups").value_or(8)},
            {"chunk", 128}};
  }
  Json delta() const {
    return {{"block", "gated_delta_net"},
            {"heads", positive("linear-num-value-heads").value_or(32)},
            {"head_dim", positive("linear-value-head-dim").value_or(128)},
            {"state", positive("linear-key-head-dim").value_or(128)},
            {"groups", positive("linear-num-key-heads").value_or(16)},
            {"convolution", positive("linear-conv-kernel-dim").value_or(4)}};
  }
  Json attention() const {
    const std::int64_t heads = value("num_attention_heads", 0);
    Json out = {{"block", "attention"},
                {"heads", heads},
                {"kv_heads", value("num_query_groups", heads)},
                {"rotary", model_.value("position_embedding_type", "none") == "rope"},
                {"qkv_bias", biases() || flag("add_qkv_bias")},
                {"projection_bias", biases()},
                {"qk_norm", flag("qk_layernorm") ? "per_head" : "none"},
                {"sinks", sinks()},
                {"gate", has("attention-output-gate") ? "elementwise"
                         : has("head-wise-attn-gate") ? "per_head"
                                                      : "none"}};
    if (model_.contains("kv_channels")) out["head_dim"] = model_.at("kv_channels");
    return out;
  }
  Json latent_attention(bool sparse) const {
    if (!latent()) fail("multi-latent-attention", "required for layers of latent attention");
    Json out = {{"block", "latent_attention"},
                {"heads", value("num_attention_heads", 0)},
                {"query_rank", value("q_lora_rank", 0)},
                {"key_value_rank", value("kv_lora_rank", 0)},
                {"nope_head_dim", value("qk_head_dim", 0)},
                {"rope_head_dim", value("qk_pos_emb_head_dim", 0)},
                {"value_head_dim", value("v_head_dim", 0)}};
    if (!sparse) return out;
    out["index_heads"] = required("dsa-indexer-n-heads");
    out["index_head_dim"] = required("dsa-indexer-head-dim");
    out["index_top_k"] = required("dsa-indexer-topk");
    return out;
  }
  Json experts() const {
    if (!experts_) fail("num-experts", "required for layers of experts (E)");
    Json out = {{"block", "experts"},
                {"count", model_.at("num_experts")},
                {"per_token", value("moe_router_topk", 2)},
                {"width", value("moe_ffn_hidden_size", value("ffn_hidden_size", 4 * value("hidden_size", 0)))},
                {"shared_width", value("moe_shared_expert_intermediate_size", 0)},
                {"shared_gate", flag("moe_shared_expert_gate")},
                {"gated", flag("swiglu")},
                {"bias", biases()},
                {"router_bias", biases()},
                {"groups", value("moe_router_num_groups", 1)},
                {"latent", whole("moe-latent-size").value_or(0)}};
    if (model_.contains("moe_router_group_topk")) out["groups_per_token"] = model_.at("moe_router_group_topk");
    if (model_.contains("activation_func_clamp_value")) out["clamp"] = model_.at("activation_func_clamp_value");
    return out;
  }

  const Json& model_;
  std::string variant_;
  std::int64_t window_ = 0;
  bool experts_ = false;
};

}  // namespace

MegatronLayers megatron_layers(const Json& model, const std::map<std::string, MegatronArgument>& arguments,
                               const std::string& source) {
  return LayerReader(model, arguments, source).read();
}

}  // namespace sluice::imports
