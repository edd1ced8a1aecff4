#include "model/workload/transformer.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "model/errors.h"
#include "model/input/json_reader.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

Transformer model_from_text(const char* text, const std::string& source = "config.json") {
  const Json json = parse_json(text, source);
  JsonReader reader(json, source);
  return reader.has("model_type") ? transformer_from_hf(reader) : transformer_from_json(reader);
}

TEST(Parameters, AreThePublishedTotals) {
  // Sums over the released checkpoints' tensors, as stated by their model cards.
  EXPECT_EQ(parameters(example("gpt2/config.json")), 124'439'808);
  EXPECT_EQ(parameters(example("llama3-8b/config.json")), 8'030'261'248);
  EXPECT_EQ(parameters(example("llama3-70b/config.json")), 70'553'706'496);
  EXPECT_EQ(parameters(example("llama2-7b/config.json")), 6'738'415'616);
  EXPECT_EQ(parameters(example("mistral-7b/config.json")), 7'241'732'096);  // v0.1
  EXPECT_EQ(parameters(example("qwen2-7b/config.json")), 7'615'616'512);
}

TEST(Parameters, OfGptFollowThePapersFormula) {
  // P = 12 l h^2 (1 + 13/(12h) + (V+s)/(12 l h)), and the final norm's 2h that it leaves out.
  const std::int64_t l = 96, h = 12288, words = 51200, s = 2048;
  EXPECT_EQ(parameters(example("gpt3-175b.json")), 12 * l * h * h + 13 * l * h + (words + s) * h + 2 * h);
}

TEST(ModelFlops, OfAnIterationFollowThePapersFormula) {
  // F = 96 B s l h^2 (1 + s/(6h) + V/(16 l h)) with full recomputation; without, the layers' part is 3/4.
  const double l = 96, h = 12288, words = 51200, s = 2048, sequences = 1536;
  const double layers = 96 * sequences * s * l * h * h * (1 + s / (6 * h));
  const double head = 96 * sequences * s * l * h * h * words / (16 * l * h);
  const Transformer model = example("gpt3-175b.json");
  EXPECT_NEAR(iteration_model_flops(model, 2048, 1536, true) / (layers + head), 1, 1e-14);
  EXPECT_NEAR(iteration_model_flops(model, 2048, 1536, false) / (layers * 3 / 4 + head), 1, 1e-14);
  EXPECT_DOUBLE_EQ(layer_model_flops(model, 2048), 24 * s * h * h + 4 * s * s * h);
  EXPECT_DOUBLE_EQ(head_model_flops(model, 2048), 2 * s * h * words);
}

TEST(SliceFlopsTest, OfAllSlicesAddUpExactlyToTheWhole) {
  const Transformer model = example("llama3-8b/config.json");
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{4096}, {1024, 1024, 1024, 1024}, {1, 7, 1111, 2977}, {4000, 95, 1}}) {
    SliceFlops sum;
    std::int64_t context = 0;
    for (const std::int64_t n : lengths) {
      const SliceFlops slice = layer_slice_flops(model, n, context);
      sum.matrices += slice.matrices;
      sum.attention += slice.attention;
      context += n;
    }
    const SliceFlops whole = layer_slice_flops(model, 4096, 0);
    EXPECT_EQ(sum.matrices, whole.matrices);
    EXPECT_EQ(sum.attention, whole.attention);
    // Attention's half square: the papers' count less half of the full square's.
    EXPECT_EQ(whole.matrices + 2 * whole.attention, layer_model_flops(model, 4096));
    EXPECT_EQ(whole.backward(), 2 * whole.forward());
    EXPECT_EQ(whole.weight_gradient(), whole.matrices);
  }
}

TEST(HuggingFace, DefaultsAreThoseOfTheLibrary) {
  const Transformer gpt2 = example("gpt2/config.json");
  EXPECT_EQ(gpt2.name, "gpt2");
  EXPECT_EQ(gpt2.ffn_hidden, 4 * 768);
  EXPECT_TRUE(gpt2.tied_embeddings);
  EXPECT_TRUE(gpt2.dropout);
  EXPECT_EQ(gpt2.positions, 1024);
  const Transformer llama = model_from_text(R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
      "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100, "architectures": ["X"]})");
  EXPECT_EQ(llama.kv_heads, 4);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_FALSE(llama.tied_embeddings);
  EXPECT_FALSE(llama.qkv_bias);
  EXPECT_FALSE(llama.dropout);
  EXPECT_EQ(llama.positions, 0);
  EXPECT_TRUE(example("qwen2-7b/config.json").qkv_bias);
}

TEST(HuggingFace, ErrorsNameFileAndKey) {
  EXPECT_EQ(error_of([] { model_from_text(R"({"model_type": "gpt2", "n_layer": 2, "n_head": 2})"); }),
            "config.json: /n_embd: required key is missing");
  EXPECT_EQ(error_of([] { model_from_text(R"({"model_type": "gpt2", "n_layer": 0})"); }),
            "config.json: /n_layer: expected a whole number from 1 to 32768, got 0");
  EXPECT_EQ(error_of([] {
              model_from_text(R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
                  "num_attention_heads": 4, "num_key_value_heads": 3})");
            }),
            "config.json: /num_key_value_heads: expected a divisor of the attention heads, got 3");
  EXPECT_EQ(error_of([] { (void)read_model("/no/such/config.json"); }),
            "/no/such/config.json: cannot open: No such file or directory");
}

TEST(Megatron, SpellingsAndDefaults) {
  const Transformer model = model_from_text(R"({"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
      "num_query_groups": 2, "kv_channels": 32, "vocab_size": 1000, "swiglu": true, "ffn_hidden_size": 160,
      "position_embedding_type": "rope", "max_position_embeddings": 512, "normalization": "RMSNorm",
      "untie_embeddings_and_output_weights": true, "disable_bias_linear": true, "add_qkv_bias": true,
      "hidden_dropout": 0, "attention_dropout": 0})",
                                            "tiny.json");
  EXPECT_EQ(model.name, "tiny");
  EXPECT_EQ(model.kv_heads, 2);
  EXPECT_EQ(model.head_dim, 32);
  EXPECT_EQ(model.positions, 0);
  EXPECT_EQ(model.max_positions, 512);
  EXPECT_FALSE(model.tied_embeddings);
  EXPECT_FALSE(model.mlp_bias);
  EXPECT_TRUE(model.qkv_bias);
  EXPECT_FALSE(model.dropout);
  // QKV 64 (128 + 128) + 256, projection 128 64, MLP 3 64 160, two norms of 64; per layer.
  EXPECT_EQ(layer_parameters(model), 64 * 256 + 256 + 128 * 64 + 3 * 64 * 160 + 2 * 64);
}

// The second key is read whatever the value of the first.
TEST(Megatron, ReadsBothDropouts) {
  const std::string sizes = R"("num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99,
                               "position_embedding_type": "rope", )";
  for (const auto& [dropouts, any] : {std::pair(R"("hidden_dropout": 0.1, "attention_dropout": 0.1})", true),
                                      {R"("hidden_dropout": 0, "attention_dropout": 0.1})", true},
                                      {R"("hidden_dropout": 0.1, "attention_dropout": 0})", true},
                                      {R"("hidden_dropout": 0, "attention_dropout": 0})", false}}) {
    EXPECT_EQ(model_from_text(("{" + sizes + dropouts).c_str(), "tiny.json").dropout, any) << dropouts;
  }
  EXPECT_EQ(error_of([&] {
              model_from_text(("{" + sizes + R"("hidden_dropout": 0.1, "attention_dropout": 2})").c_str(), "tiny.json");
            }),
            "tiny.json: /attention_dropout: expected a number from 0 to 1, got 2");
}

// Found by the fuzzer: their count overflowed.
TEST(Megatron, MoreThan1e14ParametersAreRejected) {
  const auto error = [](const char* layers, const char* vocabulary) {
    const std::string text = std::string(R"({"num_attention_heads": 1, "hidden_size": 1048576, "num_layers": )") +
                             layers + R"(, "position_embedding_type": "none", "vocab_size": )" + vocabulary + "}";
    return error_of([&] { model_from_text(text.c_str(), "big.json"); });
  };
  // 12 h^2 = 1.3e13 per layer: seven are 9.2e13, eight 1.06e14.
  EXPECT_EQ(error("7", "1"), "no error");
  EXPECT_EQ(error("8", "1"), "big: 1.1e+14 parameters are more than the 1e+14 allowed");
  // Word embedding and head: 2^31 h = 2.3e15 each.
  EXPECT_EQ(error("1", "2147483648"), "big: 4.5e+15 parameters are more than the 1e+14 allowed");
}

TEST(Megatron, ErrorsNameFileAndKey) {
  EXPECT_EQ(error_of([] {
              model_from_text(R"({"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 10,
                  "max_position_embeddings": 8, "num_querygroups": 2})");
            }),
            "config.json: /num_querygroups: unknown key; did you mean 'num_query_groups'?");
  EXPECT_EQ(error_of([] {
              model_from_text(R"({"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 10})");
            }),
            "config.json: /max_position_embeddings: required key is missing");
  EXPECT_EQ(error_of([] {
              model_from_text(R"({"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "swiglu": true})");
            }),
            "config.json: /ffn_hidden_size: required key is missing");
}

}  // namespace
}  // namespace sluice::test
