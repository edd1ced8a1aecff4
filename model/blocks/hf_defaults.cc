#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "model/blocks/hf_types.h"

namespace sluice::model {
namespace {

// Of version 3, which has no indexer, too.
constexpr std::string_view kDeepSeek = R"({"first_k_dense_replace": 3, "index_head_dim": 128, "index_n_heads": 64,
    "index_topk": 2048, "kv_lora_rank": 512, "moe_intermediate_size": 2048, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "topk_group": 4, "v_head_dim": 128})";

// The values of the classes of transformers 5.24.0 (configuration_*.py) for keys that a config.json may leave out and
// that change sizes, besides those that are false or 0, or follow from other keys.
constexpr std::pair<std::string_view, std::string_view> kDefaults[] = {
    {"deepseek_v2", R"({"first_k_dense_replace": 0, "kv_lora_rank": 512, "moe_intermediate_size": 1407,
        "n_routed_experts": 64, "n_shared_experts": 2, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128})"},
    {"deepseek_v3", kDeepSeek},
    {"deepseek_v32", kDeepSeek},
    {"deepseek_v4", R"({"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
        "hc_mult": 4, "head_dim": 512, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512,
        "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 6,
        "num_key_value_heads": 1, "o_groups": 8, "o_lora_rank": 1024, "q_lora_rank": 1024, "sliding_window": 128})"},
    {"ernie4_5_moe", R"({"moe_intermediate_size": 1536, "moe_k": 6, "moe_layer_start_index": 1, "moe_num_experts": 64,
        "moe_num_shared_experts": 2, "num_key_value_heads": 4})"},
    {"exaone_moe", R"({"first_k_dense_replace": 1, "moe_intermediate_size": 1024, "num_experts": 64,
        "num_experts_per_tok": 8, "num_key_value_heads": 32, "num_shared_experts": 1, "sliding_window": 4096})"},
    {"falcon", R"({"multi_query": true})"},
    {"falcon_h1", R"({"mamba_chunk_size": 256, "mamba_d_conv": 4, "mamba_d_state": 256, "mamba_n_groups": 1,
        "mamba_n_heads": 128, "num_key_value_heads": 8})"},
    {"gemma2", R"({"head_dim": 256, "num_key_value_heads": 4, "sliding_window": 4096})"},
    {"gemma3_text", R"({"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096,
        "vocab_size": 262208})"},
    {"gemma4_text",
     R"({"enable_moe_block": false, "global_head_dim": 512, "head_dim": 256, "hidden_size_per_layer_input": 256,
        "num_key_value_heads": 4, "sliding_window": 512})"},
    {"glm4_moe", R"({"first_k_dense_replace": 1, "moe_intermediate_size": 1408, "n_routed_experts": 128,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "num_key_value_heads": 8})"},
    {"glm5_next_text", R"({"first_k_dense_replace": 3, "hc_mult": 4, "index_head_dim": 128, "index_kpool": 16,
        "index_n_heads": 32, "index_topk": 2048, "kv_lora_rank": 512, "linear_conv_kernel_dim": 4,
        "linear_head_dim": 128, "linear_num_heads": 64, "moe_intermediate_size": 2048, "n_routed_experts": 288,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "q_lora_rank": 1536, "qk_nope_head_dim": 256,
        "v_head_dim": 256})"},
    {"glm_moe_dsa", R"({"first_k_dense_replace": 3, "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048,
        "kv_lora_rank": 512, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
        "v_head_dim": 256})"},
    {"gpt_oss", R"({"head_dim": 64, "num_experts_per_tok": 4, "num_key_value_heads": 8, "num_local_experts": 128,
        "sliding_window": 128})"},
    {"granitemoehybrid", R"({"mamba_chunk_size": 256, "mamba_d_conv": 4, "mamba_d_state": 256, "mamba_n_groups": 1,
        "mamba_n_heads": 128, "num_experts_per_tok": 2, "num_local_experts": 8, "shared_intermediate_size": 1024})"},
    {"hy_v3",
     R"({"first_k_dense_replace": 1, "head_dim": 128, "moe_intermediate_size": 1536, "num_experts": 192, "num_experts_per_tok": 8,
        "num_key_value_heads": 8, "num_shared_experts": 1})"},
    {"kimi_linear", R"({"first_k_dense_replace": 1, "kv_lora_rank": 512, "moe_intermediate_size": 1024,
        "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128})"},
    {"lfm2_moe", R"({"conv_L_cache": 3, "moe_intermediate_size": 1792, "num_dense_layers": 2, "num_experts": 32,
        "num_experts_per_tok": 4, "num_key_value_heads": 8})"},
    {"llama4_text", R"({"attention_chunk_size": 8192, "head_dim": 128, "interleave_moe_layer_step": 1,
        "intermediate_size_mlp": 16384, "num_experts_per_tok": 1, "num_key_value_heads": 8,
        "num_local_experts": 16})"},
    {"longcat_flash", R"({"expert_ffn_hidden_size": 2048, "ffn_hidden_size": 12288, "kv_lora_rank": 512,
        "moe_topk": 12, "n_routed_experts": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "zero_expert_num": 256})"},
    {"mimo_v2_flash",
     R"({"first_k_dense_replace": 1, "head_dim": 192, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "num_key_value_heads": 4, "v_head_dim": 128})"},
    {"minimax", R"({"num_experts_per_tok": 2, "num_key_value_heads": 8, "num_local_experts": 8})"},
    {"minimax_m2", R"({"head_dim": 128, "num_experts_per_tok": 8, "num_key_value_heads": 8,
        "num_local_experts": 256})"},
    {"mistral", R"({"num_key_value_heads": 8, "sliding_window": 4096})"},
    {"mixtral", R"({"num_experts_per_tok": 2, "num_key_value_heads": 8, "num_local_experts": 8})"},
    {"nemotron_h",
     R"({"moe_intermediate_size": 7688, "chunk_size": 128, "conv_kernel": 4, "head_dim": 128, "mamba_head_dim": 64,
        "mamba_num_heads": 128, "n_groups": 8, "num_key_value_heads": 8, "ssm_state_size": 128})"},
    {"olmo3", R"({"sliding_window": 4096})"},
    {"olmo_hybrid", R"({"linear_conv_kernel_dim": 4})"},
    {"olmoe", R"({"num_experts": 64, "num_experts_per_tok": 8})"},
    {"phimoe", R"({"num_experts_per_tok": 2, "num_key_value_heads": 8, "num_local_experts": 16})"},
    {"qwen2_moe", R"({"moe_intermediate_size": 1408, "num_experts": 60, "num_experts_per_tok": 4,
        "shared_expert_intermediate_size": 5632})"},
    {"qwen3", R"({"head_dim": 128})"},
    {"qwen3_5_moe_text", R"({"head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
        "moe_intermediate_size": 512, "num_experts": 256, "num_experts_per_tok": 8, "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 512})"},
    {"qwen3_5_text", R"({"head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
        "num_key_value_heads": 4})"},
    {"qwen3_moe", R"({"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        "num_key_value_heads": 4})"},
    {"qwen3_next", R"({"head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
        "moe_intermediate_size": 512, "num_experts": 512, "num_experts_per_tok": 10, "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 512})"},
    {"qwen3_vl_moe_text", R"({"moe_intermediate_size": 1408, "num_experts": 60, "num_experts_per_tok": 4,
        "num_key_value_heads": 16})"},
    {"qwen3_vl_text", R"({"head_dim": 128, "num_key_value_heads": 32})"},
    {"seed_oss", R"({"attention_bias": true, "head_dim": 128, "num_key_value_heads": 8})"},
    {"smollm3", R"({"num_key_value_heads": 4})"},
};

}  // namespace

Json with_hf_defaults(const Json& config, std::string_view type) {
  Json out = config;
  const auto* const found =
      std::find_if(std::begin(kDefaults), std::end(kDefaults), [&](const auto& each) { return each.first == type; });
  if (found == std::end(kDefaults)) return out;
  const Json defaults = Json::parse(found->second);
  for (const auto& [key, value] : defaults.items()) out.emplace(key, value);
  return out;
}

}  // namespace sluice::model
