#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/input/json_reader.h"
#include "model/slicing/balanced.h"
#include "model/workload/transformer.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::StartsWith;

Transformer from_text(const std::string& text) {
  const Json json = parse_json(text, "model.json");
  JsonReader reader(json, "model.json");
  return model_from_json(reader).transformer("a test");
}

TEST(ExpertParameters, AreThePublishedTotals) {
  // Sums over the released checkpoints' tensors. Model cards: 46.7 and 12.9 billion, 236 and 21, 671 and 37, 30.5.
  const Transformer mixtral = example("mixtral-8x7b/config.json");
  EXPECT_EQ(parameters(mixtral), 46'702'792'704);
  // All but six of the eight experts of each layer, 3 h f each.
  EXPECT_EQ(active_parameters(mixtral), 46'702'792'704 - 32 * 6 * 3 * std::int64_t{4096} * 14336);
  const Transformer v2 = example("deepseek-v2/config.json");
  EXPECT_EQ(parameters(v2), 235'741'434'880);
  EXPECT_EQ(active_parameters(v2), 235'741'434'880 - 59 * 154 * 3 * std::int64_t{5120} * 1536);
  // The checkpoint has 671,026,419,200 before its multi-token prediction: with 58 biases of 256 that only balance load.
  const Transformer v3 = example("deepseek-v3/config.json");
  EXPECT_EQ(parameters(v3), 671'026'419'200 - 58 * 256);
  EXPECT_EQ(active_parameters(v3), parameters(v3) - 58 * 248 * 3 * std::int64_t{7168} * 2048);
  // A token reaches at most three devices of eight (arXiv:2405.04434, 2.2.2) or four nodes of eight (arXiv:2412.19437).
  EXPECT_EQ(std::pair(v2.experts.groups, v2.experts.groups_per_token), std::pair(8, 3));
  EXPECT_EQ(std::pair(v3.experts.groups, v3.experts.groups_per_token), std::pair(8, 4));
  EXPECT_EQ(parameters(example("qwen3-30b-a3b/config.json")), 30'532'122'624);
}

TEST(ExpertParameters, OfQwen2CountTheSharedExpertsGate) {
  // Qwen1.5-MoE-A2.7B: 14.3 billion.
  const Transformer model = from_text(R"({"model_type": "qwen2_moe", "num_hidden_layers": 24, "hidden_size": 2048,
      "num_attention_heads": 16, "intermediate_size": 5632, "vocab_size": 151936, "num_experts": 60,
      "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632})");
  // A layer: attention 4 h^2 + 3h biases, router 60 h, experts, shared expert and its gate h, two norms.
  const std::int64_t h = 2048;
  const std::int64_t layer = 4 * h * h + 3 * h + 60 * h + 60 * 3 * h * 1408 + 3 * h * 5632 + h + 2 * h;
  EXPECT_EQ(layer_parameters(model, LayerKind::experts), layer);
  EXPECT_EQ(parameters(model), 24 * layer + 2 * 151936 * h + h);
  EXPECT_EQ(parameters(model), 14'315'784'192);
}

TEST(ExpertFlops, AreThoseOfActiveParameters) {
  // Mixtral: a token uses attention, the router and two experts; scores and values as in a dense model.
  const Transformer model = example("mixtral-8x7b/config.json");
  const double s = 4096, h = 4096, f = 14336;
  const double matrices = h * (4096 + 2 * 1024) + 4096 * h + 8 * h + 2 * 3 * h * f;
  EXPECT_DOUBLE_EQ(layer_model_flops(model, 4096, LayerKind::experts), 2 * s * matrices + 4 * s * s * h);
  EXPECT_DOUBLE_EQ(iteration_model_flops(model, 4096, 3, false),
                   3 * 3 * (32 * (2 * s * matrices + 4 * s * s * h) + 2 * s * h * 32000));
  // DeepSeek-V2: 128 heads whose scores take 192 elements and whose values have 128; one dense layer of 60.
  const Transformer latent = example("deepseek-v2/config.json");
  const SliceFlops slice = layer_slice_flops(latent, 4096, 0, LayerKind::experts);
  EXPECT_DOUBLE_EQ(slice.attention, 2 * 128 * (192 + 128) * s * s / 2);
  EXPECT_DOUBLE_EQ(iteration_model_flops(latent, 4096, 1, false),
                   3 * (layer_model_flops(latent, 4096) + 59 * layer_model_flops(latent, 4096, LayerKind::experts) +
                        2 * s * 5120 * 102400));
}

const std::string kSmallModel = R"("num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 1000,
    "swiglu": true, "ffn_hidden_size": 160, "position_embedding_type": "rope", "disable_bias_linear": true)";

TEST(MegatronExperts, SpellingsAndDefaults) {
  const Transformer model = from_text("{" + kSmallModel + R"(, "num_experts": 8, "moe_layer_freq": [0, 0, 1, 1],
      "moe_ffn_hidden_size": 32, "moe_shared_expert_intermediate_size": 48, "multi_latent_attention": true,
      "q_lora_rank": 24, "kv_lora_rank": 16, "qk_head_dim": 12, "qk_pos_emb_head_dim": 4, "v_head_dim": 8})");
  EXPECT_EQ(model.experts.per_token, 2);  // moe_router_topk's default
  EXPECT_EQ(model.dense_layers(), 2);
  EXPECT_EQ(model.layer_kind(1), LayerKind::dense);
  EXPECT_EQ(model.layer_kind(2), LayerKind::experts);
  // Queries 64 24 + 24 4 16, latent 64 (16 + 4), keys and values 16 4 (12 + 8), output 4 8 64.
  const std::int64_t attention = 64 * 24 + 24 * 64 + 64 * 20 + 16 * 4 * 20 + 32 * 64;
  EXPECT_EQ(layer_matrix_elements(model), attention + 3 * 64 * 160);
  // Norms with gain and bias: two of h; of the latents gain alone.
  EXPECT_EQ(layer_parameters(model), attention + 3 * 64 * 160 + 4 * 64 + 24 + 16);
  EXPECT_EQ(layer_parameters(model, LayerKind::experts),
            attention + 8 * 64 + 8 * 3 * 64 * 32 + 3 * 64 * 48 + 4 * 64 + 24 + 16);
  EXPECT_EQ(routed_expert_parameters(model), 8 * 3 * 64 * 32);
}

TEST(MegatronExperts, LayerFrequencyOfOneIsOfAllLayers) {
  for (const char* every : {"1", "[1]", "[1, 1, 1, 1]", "null"}) {
    EXPECT_EQ(from_text("{" + kSmallModel + R"(, "num_experts": 8, "moe_layer_freq": )" + every + "}").dense_layers(),
              0);
  }
}

TEST(BalancedSlices, CountTheExpertsOfAToken) {
  // 59 of 60 layers have experts; slices are cut at single tokens, so that they differ by less than one token's FLOPs.
  const Transformer model = example("deepseek-v2/config.json");
  const std::vector<std::int64_t> lengths = balanced_slices(model, 16384, 4, 1);
  const auto work = [&](std::int64_t tokens, std::int64_t context) {
    return layer_slice_flops(model, tokens, context).forward() +
           59 * layer_slice_flops(model, tokens, context, LayerKind::experts).forward();
  };
  std::int64_t context = 0;
  for (const std::int64_t length : lengths) {
    EXPECT_NEAR(work(length, context), work(16384, 0) / 4, work(1, 16384));
    context += length;
  }
  EXPECT_EQ(context, 16384);
}

TEST(MegatronExperts, HaveBiasesUnlessDisabled) {
  const Transformer model = from_text(R"({"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
      "vocab_size": 1000, "max_position_embeddings": 8, "num_experts": 8})");
  // Two matrices of 64 x 256 each, and their biases.
  EXPECT_EQ(routed_expert_parameters(model), 8 * (2 * 64 * 256 + 256 + 64));
  EXPECT_EQ(parameters(model) - active_parameters(model), 4 * 6 * (2 * 64 * 256 + 256 + 64));
}

TEST(MegatronExperts, UnsupportedFeaturesAreRejected) {
  const auto error = [](const std::string& more) {
    return error_of([&] { from_text("{" + kSmallModel + ", " + more + "}"); });
  };
  EXPECT_EQ(error(R"("moe_router_topk": 2)"), "model.json: /moe_router_topk: requires num_experts, got 2");
  EXPECT_EQ(error(R"("kv_lora_rank": 2)"), "model.json: /kv_lora_rank: requires multi_latent_attention, got 2");
  EXPECT_EQ(error(R"("num_experts": 8, "moe_layer_freq": [0, 1, 0, 1])"),
            "model.json: /moe_layer_freq/2: expected 1: dense layers are modeled at the front only, got 0");
  EXPECT_EQ(error(R"("num_experts": 8, "moe_layer_freq": 2)"),
            "model.json: /moe_layer_freq: expected 1, or a list: dense layers are modeled at the front, got 2");
  EXPECT_EQ(error(R"("num_experts": 8, "moe_router_topk": 9)"),
            "model.json: /moe_router_topk: expected a whole number from 1 to 8, got 9");
  EXPECT_EQ(error(R"("num_experts": 1)"),
            "model.json: /num_experts: expected at least 2, the default of moe_router_topk, got 1");
  EXPECT_EQ(error(R"("num_experts": 8, "moe_layer_freq": [0, 0, 0, 0])"),
            "model.json: /moe_layer_freq: expected a layer with experts (1), got [0,0,0,0]");
  EXPECT_EQ(error(R"("multi_latent_attention": true, "kv_lora_rank": 16, "qk_head_dim": 12)"),
            "model.json: /qk_pos_emb_head_dim: required key is missing");
  EXPECT_EQ(error_of([] {
              from_text(R"({"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 1000,
                  "max_position_embeddings": 8, "num_experts": 8, "moe_shared_expert_intermediate_size": 32})");
            }),
            "model.json: /moe_shared_expert_intermediate_size: requires disable_bias_linear, got 32");
}

TEST(HuggingFaceExperts, WrongKeysAreNamed) {
  const auto error = [](const std::string& type, const std::string& more) {
    return error_of([&] {
      from_text("{\"model_type\": \"" + type + R"(", "num_hidden_layers": 2, "hidden_size": 64,
          "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 100)" +
                more + "}");
    });
  };
  EXPECT_EQ(error("deepseek_v2", ""), "model.json: /num_experts_per_tok: required key is missing");
  // The value of transformers' class, which two layers do not have.
  EXPECT_EQ(error("deepseek_v3", R"(, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8)"),
            "model.json: /first_k_dense_replace: expected a whole number from 0 to 1, got 3");
  EXPECT_EQ(error("qwen3_moe", R"(, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
                  "decoder_sparse_step": 2)"),
            "model: a test: layers of this kind is not supported");
  EXPECT_EQ(error("mixtral", R"(, "num_local_experts": 8, "num_experts_per_tok": 9)"),
            "model.json: /num_experts_per_tok: expected a whole number from 1 to 8, got 9");
  EXPECT_EQ(error("deepseek_v3", R"(, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
                  "first_k_dense_replace": 2)"),
            "model.json: /first_k_dense_replace: expected a whole number from 0 to 1, got 2");
  EXPECT_EQ(error("qwen3_moe", R"(, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
                  "mlp_only_layers": [0, 1])"),
            "model.json: /mlp_only_layers: expected a layer with experts, got [0,1]");
  EXPECT_EQ(error("qwen2_moe", R"(, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
                  "shared_expert_intermediate_size": 8, "mlp_bias": true)"),
            "model.json: /mlp_bias: expected false: shared experts with biases are not modeled, got true");
  const char* deepseek = R"(, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
      "first_k_dense_replace": 1, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8)";
  EXPECT_EQ(error("deepseek_v2", deepseek + std::string(R"(, "attention_bias": true)")),
            "model.json: /attention_bias: expected false: latent attention with biases is not modeled, got true");
  EXPECT_EQ(error("deepseek_v2", deepseek + std::string(R"(, "mlp_bias": true, "n_shared_experts": 1)")),
            "model.json: /mlp_bias: expected false: shared experts with biases are not modeled, got true");
  EXPECT_THAT(
      error("dbrx", ""),
      AllOf(StartsWith("model.json: /model_type: expected one of K-EXAONE, arcee, bloom, deepseek_v2, "),
            EndsWith(", step3p5, step3p7; its keys suggest layers of attention, mlp: write them as a list of layers "
                     "(sluice.model/2, docs/formats.md), got \"dbrx\"")));
}

}  // namespace
}  // namespace sluice::test
