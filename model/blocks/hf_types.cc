#include "model/blocks/hf_types.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sluice::model {
namespace {

using QkNorm = AttentionOptions::QkNorm;
using Gate = AttentionOptions::Gate;
using enum HfType::Norms;
using Rope = HfType::Rope;

constexpr HfType kHfTypes[] = {
    {.name = "arcee", .gated = false},
    {.name = "bloom",
     .rope = Rope::none,
     .qkv_bias = true,
     .projection_bias = true,
     .mlp_bias = true,
     .gated = false,
     .layer_norm = true,
     .tied = true,
     .embedding_norm = true},
    {.name = "deepseek_v32"},
    {.name = "deepseek_v4"},
    {.name = "dots1", .qk_norm = QkNorm::per_head},
    {.name = "ernie4_5_moe", .tied = true, .router_bias = true},
    {.name = "exaone_moe", .qk_norm = QkNorm::per_head, .rope = Rope::windows},
    {.name = "falcon", .gated = false, .layer_norm = true, .tied = true, .parallel_norms = 1},
    {.name = "falcon_h1"},
    {.name = "gemma2", .norms = both, .tied = true, .pattern = "WF"},
    {.name = "gemma3_text", .qk_norm = QkNorm::per_head, .norms = both, .tied = true, .pattern = "WWWWWF"},
    {.name = "gemma4_text",
     .qk_norm = QkNorm::per_head,
     .norms = both,
     .tied = true,
     .router_bias = true,
     .router_scale = true,
     .pattern = "WWWWWF"},
    {.name = "glm4_moe"},
    {.name = "glm5_next_text", .mean_of_streams = true, .linear = 'K', .clamp = 10, .pattern = "KKKF"},
    {.name = "glm_moe_dsa"},
    {.name = "gpt_neox",
     .qkv_bias = true,
     .projection_bias = true,
     .mlp_bias = true,
     .gated = false,
     .layer_norm = true,
     .parallel_norms = 2},
    {.name = "gpt_oss",
     .qkv_bias = true,
     .projection_bias = true,
     .mlp_bias = true,
     .router_bias = true,
     .sinks = "WF",
     .clamp = 7,
     .pattern = "WF"},
    {.name = "granitemoehybrid", .linear = 'M', .pattern = "M"},
    {.name = "hunyuan_v1_moe", .qk_norm = QkNorm::per_head, .tied = true},
    {.name = "hy_v3", .qk_norm = QkNorm::per_head},
    {.name = "kimi_k2"},
    {.name = "kimi_linear", .linear = 'K', .pattern = "?"},
    {.name = "lfm2_moe", .qk_norm = QkNorm::per_head, .tied = true, .pattern = "?"},
    {.name = "llama4_text"},
    {.name = "longcat_flash"},
    {.name = "mimo", .qkv_bias = true},
    {.name = "mimo_v2_flash", .sinks = "W", .pattern = "?"},
    {.name = "minimax", .linear = 'L', .pattern = "FL"},
    {.name = "minimax_m2", .qk_norm = QkNorm::all_heads},
    {.name = "minimax_m3", .qk_norm = QkNorm::per_head},
    {.name = "mistral", .pattern = "W"},
    {.name = "mixtral", .pattern = "W"},
    {.name = "nemotron_h", .rope = Rope::none, .gated = false},
    {.name = "olmo2", .qk_norm = QkNorm::all_heads, .norms = post},
    {.name = "olmo3", .qk_norm = QkNorm::all_heads, .norms = post, .pattern = "WWWF"},
    {.name = "olmo_hybrid", .qk_norm = QkNorm::all_heads, .norms = post, .pattern = "GGGF"},
    {.name = "olmoe", .qk_norm = QkNorm::all_heads},
    {.name = "opt",
     .rope = Rope::learned,
     .qkv_bias = true,
     .projection_bias = true,
     .mlp_bias = true,
     .gated = false,
     .layer_norm = true,
     .tied = true},
    {.name = "phi",
     .qkv_bias = true,
     .projection_bias = true,
     .mlp_bias = true,
     .gated = false,
     .layer_norm = true,
     .head_bias = true,
     .parallel_norms = 1},
    {.name = "phimoe", .layer_norm = true},
    {.name = "qwen2", .qkv_bias = true},
    {.name = "qwen2_moe", .qkv_bias = true, .shared_gate = true},
    {.name = "qwen3", .qk_norm = QkNorm::per_head},
    {.name = "qwen3_5_moe_text",
     .qk_norm = QkNorm::per_head,
     .gate = Gate::elementwise,
     .shared_gate = true,
     .pattern = "GGGF"},
    {.name = "qwen3_5_text", .qk_norm = QkNorm::per_head, .gate = Gate::elementwise, .pattern = "GGGF"},
    {.name = "qwen3_moe", .qk_norm = QkNorm::per_head},
    {.name = "qwen3_next",
     .qk_norm = QkNorm::per_head,
     .gate = Gate::elementwise,
     .shared_gate = true,
     .pattern = "GGGF"},
    {.name = "qwen3_vl_moe_text", .qk_norm = QkNorm::per_head},
    {.name = "qwen3_vl_text", .qk_norm = QkNorm::per_head},
    {.name = "seed_oss", .qkv_bias = true},
    {.name = "smollm3", .tied = true},
    {.name = "step3p5", .qk_norm = QkNorm::per_head, .gate = Gate::per_head, .pattern = "FWWW"},
};

// Types whose config has the language model's in "text_config", or another name for the same layers.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"gemma3", "gemma3_text"},
    {"gemma4", "gemma4_text"},
    {"glm5_next", "glm5_next_text"},
    {"kimi_k3", "kimi_linear"},
    {"llama4", "llama4_text"},
    {"qwen3_5", "qwen3_5_text"},
    {"qwen3_5_moe", "qwen3_5_moe_text"},
    {"qwen3_vl", "qwen3_vl_text"},
    {"qwen3_vl_moe", "qwen3_vl_moe_text"},
    {"step3p7", "step3p5"},
    {"minimax_text_01", "minimax"},
    {"minimax_m1", "minimax"},
    {"K-EXAONE", "exaone_moe"},
};

constexpr std::pair<std::string_view, std::string_view> kNotModeled[] = {
    {"qwen4_exp", "embeddings of n-grams and hyper-connections of low rank"},
    {"qwen4_exp_text", "embeddings of n-grams and hyper-connections of low rank"},
};

std::string_view language_type(std::string_view type) {
  for (const auto& [alias, of] : kAliases) {
    if (alias == type) return of;
  }
  return type;
}

}  // namespace

const HfType* find_hf_type(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kHfTypes), std::end(kHfTypes),
                                         [&](const HfType& type) { return type.name == language_type(name); });
  return found == std::end(kHfTypes) ? nullptr : found;
}

std::string_view not_modeled(std::string_view type) {
  for (const auto& [name, what] : kNotModeled) {
    if (name == type) return what;
  }
  return "";
}

std::vector<std::string> hf_type_names() {
  std::vector<std::string> out;
  for (const HfType& type : kHfTypes) out.emplace_back(type.name);
  for (const auto& [alias, of] : kAliases) out.emplace_back(alias);
  return out;
}

}  // namespace sluice::model
