#include "import/megatron_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string_view>

#include "model/blocks/attention.h"
#include "model/blocks/experts.h"
#include "model/blocks/latent_attention.h"
#include "model/blocks/layer.h"
#include "model/blocks/mlp.h"
#include "model/blocks/scan.h"
#include "model/errors.h"

namespace sluice::imports {
namespace {

bool is_single(const LayerStep& step) { return step.blocks.size() == 1; }

// Calls `visit` for each block of the kinds of layers that a model has.
void for_each_block(const Model& model, const std::function<void(const Block&)>& visit) {
  model.any_block([&](const Block& block) {
    visit(block);
    return false;
  });
}

const Block& mixer_of(const Model& model, std::uint8_t kind) { return *model.kind(kind).steps.front().blocks.front(); }

const Indexer* indexer_of(const Block& block) {
  const auto* const latent = dynamic_cast<const LatentAttentionBlock*>(&block);
  return latent != nullptr && latent->options().indexer ? &*latent->options().indexer : nullptr;
}

// The letter of a block in a pattern of layers; 0: it has none.
char letter_of(const Block& block) {
  if (block.kind() == "attention") return '*';
  if (block.kind() == "latent_attention") return indexer_of(block) != nullptr ? 'D' : '+';
  if (block.kind() == "mamba2") return 'M';
  if (block.kind() == "gated_delta_net") return 'G';
  if (block.kind() == "mlp") return '-';
  return block.kind() == "experts" ? 'E' : '\0';
}

// 1 for each layer of the pattern whose mixer `holds`.
std::vector<int> list_of(const Model& model, const std::function<bool(const Block&)>& holds) {
  std::vector<int> of_kind;
  for (std::size_t kind = 0; kind < model.kinds().size(); ++kind) {
    of_kind.push_back(holds(mixer_of(model, static_cast<std::uint8_t>(kind))) ? 1 : 0);
  }
  std::vector<int> out;
  for (const std::uint8_t kind : model.pattern()) out.push_back(of_kind[kind]);
  return out;
}

// Returns a list of 0 and 1 as an expression of lists that are repeated and joined.
std::string expression(const std::vector<int>& list) {
  std::string out;
  for (auto at = list.begin(); at != list.end();) {
    const auto end = std::find(at, list.end(), 1 - *at);
    out += fmt::format("{}[{}]*{}", out.empty() ? "" : "+", *at, end - at);
    at = end;
  }
  return fmt::format("'({})'", out);
}

// The same, or N where each N-th layer alone has the value `nth`.
std::string frequency(const std::vector<int>& list, int nth) {
  const auto every = std::find(list.begin(), list.end(), nth) - list.begin() + 1;
  for (std::ptrdiff_t i = 0; i < std::ssize(list); ++i) {
    if ((list[static_cast<std::size_t>(i)] == nth) != ((i + 1) % every == 0)) return expression(list);
  }
  return fmt::format("{}", every);
}

// The layers of which a block with shared indices uses others' (1), and the two arguments that say so.
struct SharedIndices {
  std::ptrdiff_t before = 0;  // leading layers with indices of their own
  std::ptrdiff_t every = 1;   // after these
  bool regular = true;
};
SharedIndices shared_indices(const Model& model) {
  const std::vector<int> shared = list_of(model, [](const Block& block) {
    const Indexer* const indexer = indexer_of(block);
    return indexer != nullptr && !indexer->own;
  });
  SharedIndices out;
  const auto first = std::find(shared.begin(), shared.end(), 1);
  if (first == shared.end()) return out;
  out.before = first - shared.begin();
  out.every = std::find(first, shared.end(), 0) - first + 1;
  for (std::ptrdiff_t i = 0; i < std::ssize(shared); ++i) {
    const bool uses = std::max<std::ptrdiff_t>(i + 1 - out.before, 0) % out.every != 0;
    out.regular = out.regular && uses == (shared[static_cast<std::size_t>(i)] == 1) && out.before > 0;
  }
  return out;
}

// The arguments for a block, but for what differs between layers: windows, rotary embeddings and own indices.
std::string arguments_of(const Block& block, int hidden) {
  Arguments out;
  if (const auto* const attention = dynamic_cast<const Attention*>(&block)) {
    const AttentionOptions& options = attention->options();
    const AttentionCore& core = options.core;
    out.add("--num-attention-heads", core.heads);
    if (core.kv_heads != core.heads) {
      out.add("--group-query-attention", true);
      out.add("--num-query-groups", core.kv_heads);
    }
    if (core.query_width() != hidden) out.add("--kv-channels", core.head_dim);
    out.add("--qk-layernorm", options.qk_norm == AttentionOptions::QkNorm::per_head);
    out.add("--attention-output-gate", options.gate == AttentionOptions::Gate::elementwise);
    out.add("--head-wise-attn-gate", options.gate == AttentionOptions::Gate::per_head);
    if (options.sinks) out.add("--softmax-type", "learnable");
  } else if (const auto* const latent = dynamic_cast<const LatentAttentionBlock*>(&block)) {
    const LatentAttention& sizes = latent->options().latent;
    out.add("--num-attention-heads", latent->options().heads);
    out.add("--multi-latent-attention", true);
    if (sizes.query_rank > 0) out.add("--q-lora-rank", sizes.query_rank);
    out.add("--kv-lora-rank", sizes.key_value_rank);
    out.add("--qk-head-dim", sizes.nope_head_dim);
    out.add("--qk-pos-emb-head-dim", sizes.rope_head_dim);
    out.add("--v-head-dim", sizes.value_head_dim);
    out.add("--qk-layernorm", true);  // of the latents
    if (const Indexer* const indexer = indexer_of(block)) {
      out.add("--experimental-attention-variant", "dsa");
      out.add("--dsa-indexer-n-heads", indexer->heads);
      out.add("--dsa-indexer-head-dim", indexer->head_dim);
      out.add("--dsa-indexer-topk", indexer->top_k);
      out.add("--dsa-indexer-use-sparse-loss", true);
    }
  } else if (const auto* const scan = dynamic_cast<const Scan*>(&block)) {
    const Scan::Options& options = scan->options();
    if (options.rule == Scan::Rule::mamba2) {
      out.add("--mamba-num-heads", options.heads);
      out.add("--mamba-head-dim", options.head_dim);
      out.add("--mamba-state-dim", options.state);
      out.add("--mamba-num-groups", options.groups);
    } else {
      out.add("--experimental-attention-variant", "gated_delta_net");
      out.add("--linear-conv-kernel-dim", options.convolution);
      out.add("--linear-key-head-dim", options.state);
      out.add("--linear-value-head-dim", options.head_dim);
      out.add("--linear-num-key-heads", options.groups);
      out.add("--linear-num-value-heads", options.heads);
    }
  } else if (const auto* const mlp = dynamic_cast<const Mlp*>(&block)) {
    out.add("--ffn-hidden-size", mlp->options().width);
  } else if (const auto* const moe = dynamic_cast<const ExpertsBlock*>(&block)) {
    const Experts& experts = moe->options().experts;
    out.add("--num-experts", experts.count);
    out.add("--moe-router-topk", experts.per_token);
    out.add("--moe-ffn-hidden-size", experts.ffn_hidden);
    if (experts.shared_ffn_hidden > 0) out.add("--moe-shared-expert-intermediate-size", experts.shared_ffn_hidden);
    if (experts.groups > 1) {
      out.add("--moe-router-num-groups", experts.groups);
      out.add("--moe-router-group-topk", experts.groups_per_token);
    }
    out.add("--moe-shared-expert-gate", experts.shared_gate);
    if (moe->options().latent > 0) out.add("--moe-latent-size", moe->options().latent);
  }
  return out.take();
}

// What Megatron-LM does not have of a block.
std::string block_lacks(const Block& block) {
  using enum AttentionOptions::QkNorm;
  const auto first = [](std::initializer_list<std::pair<bool, std::string_view>> options) {
    const auto* const found =
        std::find_if(options.begin(), options.end(), [](const auto& option) { return option.first; });
    return found == options.end() ? "" : std::string(found->second);
  };
  if (letter_of(block) == '\0') return std::string(block.kind());
  if (const auto* const attention = dynamic_cast<const Attention*>(&block)) {
    const AttentionOptions& of = attention->options();
    return first({{of.core.chunk > 0, "attention in chunks"},
                  {of.core.value_head_dim != of.core.head_dim, "values of another size than keys"},
                  {of.qk_norm == all_heads, "a norm over all heads of queries and keys"},
                  {of.keys_as_values, "keys that are values"},
                  {of.shared_keys, "keys and values of an earlier layer"},
                  {of.indexer.has_value(), "attention to chosen blocks of tokens"},
                  {of.projection_bias && !of.qkv_bias, "biases without those of queries, keys and values"}});
  }
  if (const auto* const latent = dynamic_cast<const LatentAttentionBlock*>(&block)) {
    const Indexer* const indexer = indexer_of(block);
    return first({{latent->options().gate, "a gate of latent attention"},
                  {!latent->options().rotary, "latent attention without rotary embeddings"},
                  {indexer != nullptr && (indexer->pool > 1 || indexer->ratio > 1), "an indexer of pooled keys"}});
  }
  if (const auto* const scan = dynamic_cast<const Scan*>(&block); scan != nullptr && letter_of(block) == 'M') {
    const Scan::Options& of = scan->options();
    return first({{of.convolution != 4, "a convolution of other than 4 tokens"},
                  {of.chunk != 128, "a scan in chunks of other than 128 tokens"},
                  {!of.norm, "Mamba-2 without a norm"}});
  }
  if (const auto* const moe = dynamic_cast<const ExpertsBlock*>(&block)) {
    const ExpertsBlock::Options& of = moe->options();
    return first({{of.latent_norm, "a norm of latent tokens"},
                  {of.router_scale, "a scale of the router's input"},
                  {of.zero_experts > 0, "experts that compute nothing"},
                  {of.experts.clamp > 0 && !of.gated, "a clamp without a gate"}});
  }
  return "";
}

// Biases, gates and activations, which are the same for all blocks.
struct CommonOptions {
  std::optional<bool> biases;
  std::optional<bool> query_biases;
  std::optional<bool> gated;
  double clamp = 0;
  std::string conflict;

  void set(std::optional<bool>& option, bool value, const char* what) {
    if (option.value_or(value) != value) conflict = what;
    option = value;
  }
  void add(const Block& block, bool transformer) {
    constexpr const char* kBiases = "biases of some linear layers only";
    constexpr const char* kGates = "a gate in experts or MLPs only";
    if (const auto* const attention = dynamic_cast<const Attention*>(&block)) {
      set(biases, attention->options().projection_bias, kBiases);
      set(query_biases, attention->options().qkv_bias, kBiases);
    } else if (const auto* const mlp = dynamic_cast<const Mlp*>(&block)) {
      set(biases, mlp->options().bias, kBiases);
      set(gated, mlp->options().gated, kGates);
    } else if (const auto* const moe = dynamic_cast<const ExpertsBlock*>(&block)) {
      set(biases, moe->options().bias, kBiases);
      if (!transformer) set(biases, moe->options().router_bias, kBiases);
      set(gated, moe->options().gated, kGates);
      clamp = moe->options().experts.clamp;
    } else {
      set(biases, false, kBiases);
    }
  }
};

CommonOptions common_options(const Model& model) {
  CommonOptions out;
  for_each_block(model, [&](const Block& block) { out.add(block, model.flat != nullptr); });
  return out;
}

// What Megatron-LM does not have of the order and steps of the layers.
std::string layers_lack(const Model& model) {
  const bool hybrid = is_megatron_hybrid(model);
  bool other_mixers = false;
  for (std::size_t index = 0; index < model.kinds().size(); ++index) {
    if (!model.uses(static_cast<int>(index))) continue;
    const std::vector<LayerStep>& steps = model.kinds()[index].steps;
    const bool predicts = hybrid && model.mtp_layers > 0 && model.mtp_kind == static_cast<int>(index);
    for (const LayerStep& step : steps) {
      if (!is_single(step)) return "blocks side by side";
      if (!step.residual) return "blocks with norms of their own";
      if (step.pre_norms != 1 || step.post_norms != 0) return "norms other than one before each block";
    }
    const bool pair = steps.size() == 2 && steps[0].blocks[0]->mixes() && !steps[1].blocks[0]->mixes();
    if (!hybrid && !pair) return "layers other than attention or a scan, and then an MLP or experts";
    if (hybrid && steps.size() > 1 && !predicts) return "layers of one block and of several";
    other_mixers = other_mixers || (pair && letter_of(*steps[0].blocks[0]) == 'M');
  }
  if (!hybrid && other_mixers) return "Mamba-2 in layers with an MLP";
  if (!hybrid && model.mtp_layers > 0 && model.mtp_kind != model.pattern().back()) {
    return "multi-token prediction with a layer other than the last";
  }
  const SharedIndices indices = shared_indices(model);
  return !indices.regular || (hybrid && indices.every > 1) ? "shared indices in this order" : "";
}

}  // namespace

std::string megatron_lacks(const Model& model) {
  if (model.streams > 1) return "hyper-connections";
  if (model.layer_embedding > 0) return "embeddings of each layer";
  if (model.added_parameters > 0) return "attention over residual streams";
  if (model.other_parameters > 0) return "a norm of the embedding or a bias of the head";
  std::string lacks = layers_lack(model);
  std::map<std::string, std::string> arguments;  // of each kind of block
  std::optional<int> window;
  for_each_block(model, [&](const Block& block) {
    if (lacks.empty()) lacks = block_lacks(block);
    if (lacks.empty()) {
      const auto [before, added] = arguments.try_emplace(std::string(block.kind()), arguments_of(block, model.hidden));
      if (!added && before->second != arguments_of(block, model.hidden)) {
        lacks = fmt::format("{} of several sizes", block.kind());
      }
    }
    if (const auto* const attention = dynamic_cast<const Attention*>(&block)) {
      const int size = attention->options().core.window;
      if (size > 0 && window.value_or(size) != size && lacks.empty()) lacks = "windows of several sizes";
      if (size > 0) window = size;
    }
  });
  const bool latent = arguments.contains("latent_attention");
  if (lacks.empty() && latent && arguments.contains("attention")) lacks = "latent attention beside attention";
  if (lacks.empty() && latent && arguments.contains("gated_delta_net")) lacks = "latent attention beside a scan";
  if (lacks.empty() && is_megatron_hybrid(model) && window) lacks = "windows in a pattern of single blocks";
  return lacks.empty() ? common_options(model).conflict : lacks;
}

bool is_megatron_hybrid(const Model& model) {
  const std::vector<LayerStep>& steps = model.kind(model.pattern().front()).steps;
  return steps.size() == 1 && is_single(steps.front()) && steps.front().residual;
}

std::string megatron_pattern(const Model& model, const std::vector<int>& stage_layers) {
  std::string out;
  auto layer = model.pattern().begin();
  for (const int count : stage_layers) {
    if (layer != model.pattern().begin()) out += '|';
    for (const auto end = layer + count; layer != end; ++layer) out += letter_of(mixer_of(model, *layer));
  }
  std::string predicted = "/";
  for (const LayerStep& step : model.kind(model.mtp_kind).steps) predicted += letter_of(*step.blocks.front());
  for (int i = 0; i < model.mtp_layers; ++i) out += predicted;
  return out;
}

void add_megatron_model(const Model& model, std::int64_t sequence_length, Arguments& out) {
  if (const std::string lacks = megatron_lacks(model); !lacks.empty()) {
    throw InputError(fmt::format("{}: arguments of Megatron-LM: {} is not supported", model.name, lacks));
  }
  const bool hybrid = is_megatron_hybrid(model);
  out.add("--num-layers", model.layers);
  out.add("--hidden-size", model.hidden);
  std::map<std::string, std::string> added;
  int window = 0;
  bool rotary = model.positions == 0;
  bool any_rotary = false;
  for_each_block(model, [&](const Block& block) {
    std::string text = arguments_of(block, model.hidden);
    if (added.try_emplace(std::string(block.kind()), text).second) out.add(text.c_str(), true);
    if (const auto* const attention = dynamic_cast<const Attention*>(&block)) {
      window = std::max(window, attention->options().core.window);
      any_rotary = any_rotary || attention->options().rotary;
      rotary = rotary && attention->options().rotary;
    }
    any_rotary = any_rotary || block.kind() == "latent_attention";
  });
  // Megatron-LM counts 4 hidden sizes for a width that no layer uses.
  if (!added.contains("mlp") && model.has_experts()) out.add("--ffn-hidden-size", model.experts.ffn_hidden);
  if (!added.contains("attention") && !added.contains("latent_attention")) out.add("--num-attention-heads", 1);
  if (!hybrid) {
    const auto is = [](char letter) { return [letter](const Block& block) { return letter_of(block) == letter; }; };
    if (added.contains("gated_delta_net")) out.add("--linear-attention-freq", frequency(list_of(model, is('G')), 0));
    if (const SharedIndices indices = shared_indices(model); indices.every > 1) {
      out.add("--dsa-indexer-topk-freq", indices.every);
      out.add("--dsa-indexer-skip-topk-offset", indices.before);
    }
    const auto windows = list_of(model, [](const Block& block) {
      const auto* const attention = dynamic_cast<const Attention*>(&block);
      return attention != nullptr && attention->options().core.window > 0;
    });
    if (window > 0) out.add("--window-size", fmt::format("{},0", window - 1));
    if (window > 0 && std::find(windows.begin(), windows.end(), 0) != windows.end()) {
      out.add("--window-attn-skip-freq", frequency(windows, 0));
    }
    std::vector<int> experts;
    for (const std::uint8_t kind : model.pattern()) experts.push_back(model.kind(kind).has_experts() ? 1 : 0);
    if (model.has_experts() && std::find(experts.begin(), experts.end(), 0) != experts.end()) {
      out.add("--moe-layer-freq", expression(experts));
    }
    const auto unrotated = list_of(model, [](const Block& block) {
      const auto* const attention = dynamic_cast<const Attention*>(&block);
      return attention != nullptr && !attention->options().rotary;
    });
    if (any_rotary && !rotary) out.add("--no-rope-freq", frequency(unrotated, 1));
  }
  out.add("--vocab-size", model.vocab);
  out.add("--seq-length", sequence_length);
  out.add("--max-position-embeddings", std::max<std::int64_t>(sequence_length, model.positions));
  if (model.positions == 0) out.add("--position-embedding-type", any_rotary ? "rope" : "none");
  const CommonOptions common = common_options(model);
  out.add("--swiglu", common.gated.value_or(false) && common.clamp == 0);
  if (common.clamp > 0) {
    out.add("--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value", fmt::format("{}", common.clamp));
  }
  if (model.rms_norm) out.add("--normalization", "RMSNorm");
  out.add("--untie-embeddings-and-output-weights", !model.tied_embeddings);
  out.add("--disable-bias-linear", !common.biases.value_or(false));
  out.add("--add-qkv-bias", common.query_biases.value_or(false) && !common.biases.value_or(false));
  if (!model.dropout) {
    out.add("--hidden-dropout", 0);
    out.add("--attention-dropout", 0);
  }
  if (model.mtp_layers > 0) out.add("--mtp-num-layers", model.mtp_layers);
}

}  // namespace sluice::imports
