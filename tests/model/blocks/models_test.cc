// The models of the catalogue as layers made of blocks.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "model/blocks/attention.h"
#include "model/blocks/attention_core.h"
#include "model/blocks/latent_attention.h"
#include "model/blocks/layer.h"
#include "model/blocks/model_files.h"
#include "model/blocks/scan.h"
#include "model/blocks/stage.h"
#include "model/blocks/stage_kernels.h"
#include "model/blocks/transformer_footprint.h"
#include "model/cluster/catalogue.h"
#include "model/cost/analytic.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/slicing/balanced.h"

namespace sluice::test {
namespace {

Model named(const std::string& name) {
  for (const CatalogueFile& file : model_files()) {
    if (file.name == name) return parse_model(file.text, std::string(file.name));
  }
  ADD_FAILURE() << "no model " << name;
  return {};
}

// Total and active parameters without multi-token prediction: of the published checkpoints where the models' cards give
// them, otherwise of the sums of the published shapes.
TEST(Models, HaveThePublishedParameters) {
  struct Published {
    const char* name;
    std::int64_t total;
    std::int64_t active;
  };
  constexpr Published kPublished[] = {
      {"nemotron-3-super", 120'668'687'360, 12'770'216'960},
      {"nemotron-3-nano", 31'577'937'344, 3'580'073'408},
      {"kimi-k3", 2'779'484'393'568, 105'363'935'328},
      {"deepseek-v3.2", 671'877'929'216, 38'403'807'488},
      {"glm-5", 743'911'199'232, 41'784'709'632},
      {"qwen3.5-35b-a3b", 34'660'610'688, 3'454'988'928},
      {"llama4-maverick", 400'711'848'960, 17'184'691'200},
      {"minimax-m2.5", 228'689'748'992, 11'030'537'216},
      {"glm-4.6", 352'797'814'784, 33'632'251'904},
      {"qwen3-30b-a3b", 30'532'122'624, 3'353'032'704},
      {"deepseek-v4-flash", 284'332'230'231, 13'799'622'231},
      {"gemma-4-26b-a4b", 25'233'141'760, 3'822'530'560},
      {"glm-5.2", 743'377'000'704, 41'250'511'104},
      {"bloom-176b", 176'247'271'424, 176'247'271'424},
      // The card has 5.13 billion active ones without the embedding, 201,088 x 2,880.
      {"gpt-oss-120b", 116'829'156'672, 5'711'982'912},
      {"gpt-oss-20b", 20'914'757'184, 4'187'440'704},
      {"gemma-3-4b", 3'880'263'168, 3'880'263'168},
      {"qwen3.8-27b", 26'895'998'464, 26'895'998'464},
      {"nemotron-h-56b", 56'324'350'464, 56'324'350'464},
  };
  for (const Published& each : kPublished) {
    SCOPED_TRACE(each.name);
    const Model model = named(each.name);
    EXPECT_EQ(parameters(model), each.total);
    EXPECT_EQ(active_parameters(model), each.active);
  }
}

// Every other layer has a window; all have sinks, and experts with biases, whose activation is clamped.
TEST(Models, GptOssHasWindowsInEveryOtherLayer) {
  const Model model = named("gpt-oss-20b");
  ASSERT_EQ(model.kinds().size(), 2U);
  EXPECT_EQ(model.pattern()[0], 0);
  EXPECT_EQ(model.kinds_of(0, 24), (std::vector<int>{12, 12}));
  const auto* const local = dynamic_cast<const Attention*>(model.kind(0).steps[0].blocks[0].get());
  const auto* const full = dynamic_cast<const Attention*>(model.kind(1).steps[0].blocks[0].get());
  ASSERT_TRUE(local != nullptr && full != nullptr);
  EXPECT_EQ(local->options().core.window, 128);
  EXPECT_EQ(full->options().core.window, 0);
  EXPECT_TRUE(local->options().sinks && full->options().sinks);
  EXPECT_EQ(model.experts.clamp, 7);
  // Of 4,096 tokens, the last 3,968 read 128 keys: 128 x 64 + 3,968 x 128 pairs with each of 64 heads of 64.
  EXPECT_DOUBLE_EQ(local->core_flops(4096, 0), 4.0 * 64 * 64 * (128 * 64 + 3968 * 128));
  try {
    (void)model.transformer("the executor");
    FAIL() << "a transformer";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("the executor: attention with a window is not supported"));
  }
}

// The workspace of a backward is that of the last layer of its stage, in whatever order the kinds of layers are listed.
TEST(Models, MemoryDoesNotDependOnTheOrderOfKinds) {
  const auto workspace = [](const std::string& attention, const std::string& mlp) {
    const Model model = parse_model(R"({"hidden_size": 1024, "vocab_size": 1024, "kinds": {")" + attention +
                                        R"(": [{"block": "attention", "heads": 8}], ")" + mlp +
                                        R"(": [{"block": "mlp", "width": 16384}]}, "layers": [")" + attention +
                                        R"(", ")" + mlp + R"("]})",
                                    "m.json");
    const TransformerFootprint footprint(model, {.sequence_length = 1024}, split_layers(model, 1, {}, 0, 0));
    return footprint.slice(0, {.sequences = 1, .slice_lengths = {1024}}, 0).gradients_to_weight_gradient +
           footprint.slice(0, {.sequences = 1, .slice_lengths = {1024}}, 0).backward_workspace;
  };
  EXPECT_EQ(workspace("a", "b"), workspace("b", "a"));
}

// transformers_parameters.py writes the file.
TEST(Models, HaveTheParametersOfTransformers) {
  const std::string path = std::string(SLUICE_SOURCE_DIR) + "/tests/model/blocks/transformers_parameters.json";
  std::istringstream lines(read_file(path, 1 << 24));
  std::set<std::string> types;
  for (std::string line; std::getline(lines, line);) {
    const Json row = parse_json(line, path);
    const std::string type = row.at("config").at("model_type");
    SCOPED_TRACE(type);
    types.insert(type);
    EXPECT_EQ(parameters(parse_model(row.at("config").dump(), type)), row.at("parameters").get<std::int64_t>());
  }
  EXPECT_EQ(types.size(), 45U);
}

// Keys that transformers' class has a value for may be missing: Gemma 3's published configs have neither heads nor
// words. Any key of the file above that is left out has the value of the class, which its first line of a type has, or
// is named as missing.
TEST(Models, MissingKeysHaveTheValuesOfTransformers) {
  const std::string path = std::string(SLUICE_SOURCE_DIR) + "/tests/model/blocks/transformers_parameters.json";
  std::istringstream lines(read_file(path, 1 << 24));
  std::set<std::string> types;
  int same = 0;
  for (std::string line; std::getline(lines, line);) {
    Json config = parse_json(line, path).at("config");
    // Layers of multi-token prediction are no part of transformers' models.
    if (!types.insert(config.at("model_type")).second) continue;
    Json& text = config.contains("text_config") ? config.at("text_config") : config;
    const Model whole = parse_model(config.dump(), "m.json");
    const Json keys = text;
    for (const auto& [key, value] : keys.items()) {
      if (key == "model_type" || key == "num_nextn_predict_layers") continue;
      SCOPED_TRACE(fmt::format("{} without {}", config.at("model_type").dump(), key));
      text.erase(key);
      try {
        const Model read = parse_model(config.dump(), "m.json");
        EXPECT_EQ(parameters(read), parameters(whole));
        EXPECT_EQ(active_parameters(read), active_parameters(whole));
        const SliceFlops flops = slice_flops(read, 1 << 14, 0);
        EXPECT_EQ(flops.matrices, slice_flops(whole, 1 << 14, 0).matrices);
        EXPECT_EQ(flops.attention, slice_flops(whole, 1 << 14, 0).attention);
        ++same;
      } catch (const InputError& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("is missing"));
      }
      text[key] = value;
    }
  }
  EXPECT_GT(same, 500);
}

// A window of a type that otherwise is a transformer makes it a list of layers; what is not modeled is refused by name.
TEST(Models, KeysThatMatterAreReadOrRefused) {
  const std::string sizes =
      R"("num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 128, "vocab_size": 256)";
  const auto read = [&](const std::string& keys) { return parse_model("{" + sizes + ", " + keys + "}", "m.json"); };
  EXPECT_TRUE(read(R"("model_type": "mistral", "sliding_window": null)").flat != nullptr);
  const Model windows = read(R"("model_type": "mistral", "sliding_window": 16)");
  ASSERT_TRUE(windows.flat == nullptr);
  EXPECT_LT(layer_slice_flops(windows, 1024, 0).attention,
            layer_slice_flops(read(R"("model_type": "mistral", "sliding_window": null)"), 1024, 0).attention / 10);
  const Model last =
      read(R"("model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 3, "sliding_window": 16)");
  EXPECT_EQ(last.kinds_of(0, 4), (std::vector<int>{3, 1}));
  const auto error_of = [&](const std::string& keys) -> std::string {
    try {
      read(keys);
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of(R"("model_type": "qwen2", "use_sliding_window": true)"),
              testing::HasSubstr("/sliding_window: required key is missing"));
  EXPECT_THAT(error_of(R"("model_type": "qwen4_exp")"),
              testing::HasSubstr("/model_type: its embeddings of n-grams and hyper-connections of low rank are not"));
  EXPECT_THAT(error_of(R"("model_type": "nemotron_h", "use_bias": true)"),
              testing::HasSubstr("/use_bias: expected false: others are not modeled, got true"));
  EXPECT_THAT(error_of(R"("model_type": "opt", "max_position_embeddings": 64, "word_embed_proj_dim": 32)"),
              testing::HasSubstr("/word_embed_proj_dim: expected the hidden size, 64"));  // OPT-350M
  EXPECT_THAT(error_of(R"("model_type": "falcon", "parallel_attn": false)"),
              testing::HasSubstr("/parallel_attn: expected true"));
  // Falcon 11B has one norm of 2 x 64 less per layer than 40B, here of four.
  const std::string falcon = R"("model_type": "falcon", "new_decoder_architecture": true, "num_kv_heads": 2)";
  EXPECT_EQ(parameters(read(falcon)) - parameters(read(falcon + R"(, "num_ln_in_parallel_attn": 1)")), 4 * 2 * 64);
  EXPECT_THAT(error_of(R"("model_type": "phi", "qk_layernorm": true)"),
              testing::HasSubstr("/qk_layernorm: expected false"));
  EXPECT_THAT(error_of(R"("model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 64,
                          "add_cross_attention": true)"),
              testing::HasSubstr("/add_cross_attention: expected false"));
  EXPECT_THAT(error_of(R"("model_type": "falcon_h1", "mamba_conv_bias": false)"),
              testing::HasSubstr("/mamba_conv_bias: expected true"));
}

// Of a config.json with an unknown type the error says what could describe it.
TEST(Models, UnknownTypesGetASuggestion) {
  const std::string config =
      R"({"model_type": "new_moe", "num_attention_heads": 8, "num_experts": 4, "mamba_n_heads": 2})";
  try {
    parse_model(config, "new.json");
    FAIL() << "read";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("its keys suggest layers of attention, mamba2, experts"));
  }
  // Where the language model has a type of its own, the rest is named.
  const Model model = parse_model(
      R"({"model_type": "new_vl", "text_config": {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64,
          "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 256}})",
      "new.json");
  EXPECT_EQ(model.layers, 2);
  EXPECT_EQ(model.left_out, "what is not in text_config");
  const Model omni = parse_model(
      R"({"model_type": "new_omni", "llm_config": {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64,
          "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 256}})",
      "new.json");
  EXPECT_EQ(omni.layers, 2);
  EXPECT_EQ(omni.left_out, "what is not in llm_config");
}

// As in transformers' modules.
TEST(Models, HybridModelsHaveNoRotaryEmbeddings) {
  const auto rotates = [](const Model& model) {
    return model.any_block([](const Block& block) {
      const auto* const attention = dynamic_cast<const Attention*>(&block);
      const auto* const latent = dynamic_cast<const LatentAttentionBlock*>(&block);
      return (attention != nullptr && attention->options().rotary) || (latent != nullptr && latent->options().rotary);
    });
  };
  EXPECT_FALSE(rotates(named("nemotron-3-super")));
  EXPECT_FALSE(rotates(named("kimi-k3")));
  EXPECT_TRUE(rotates(named("qwen3-next-80b-a3b")));
  const std::string granite =
      R"({"model_type": "granitemoehybrid", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
          "intermediate_size": 128, "vocab_size": 256, "mamba_d_head": 1, "layer_types": ["linear_attention", "attention"])";
  EXPECT_FALSE(rotates(parse_model(granite + "}", "m.json")));
  EXPECT_TRUE(rotates(parse_model(granite + R"(, "position_embedding_type": "rope"})", "m.json")));
}

// Counted on the modules of transformers 5.24.0; Qwen3.8 27B's is on its card.
TEST(Models, EncodersThatAreLeftOutHaveTheirParameters) {
  const auto left_out = [](const std::string& type, const std::string& vision) {
    return parse_model(R"({"model_type": ")" + type +
                           R"(", "text_config": {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64,
                   "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 256}, "vision_config": )" +
                           vision + "}",
                       "m.json")
        .left_out;
  };
  const std::string qwen =
      R"("depth": 27, "num_heads": 16, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16,
      "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304, "out_hidden_size": )";
  EXPECT_EQ(left_out("new_vl", R"({"model_type": "qwen3_5", )" + qwen + "5120}"),
            "its vision encoder (460730096 parameters)");
  EXPECT_EQ(
      left_out("new_vl", R"({"model_type": "qwen3_vl", "deepstack_visual_indexes": [8, 16, 24], )" + qwen + "4096}"),
      "its vision encoder (576388336 parameters)");
  EXPECT_EQ(left_out("new_vl", R"({"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
                                   "num_hidden_layers": 27, "image_size": 896, "patch_size": 14})"),
            "its vision encoder (416866032 parameters)");
  EXPECT_EQ(left_out("new_vl", R"({"model_type": "clip_vision_model", "hidden_size": 768, "intermediate_size": 3072,
                                   "num_hidden_layers": 12, "image_size": 224, "patch_size": 32})"),
            "its vision encoder (87456000 parameters)");
  EXPECT_EQ(left_out("new_vl", R"({"model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096,
                                   "num_hidden_layers": 24, "image_size": 1024, "patch_size": 16})"),
            "its vision encoder (403489792 parameters)");
  EXPECT_EQ(left_out("new_vl", R"({"model_type": "another", "hidden_size": 1024})"), "its vision encoder");
}

// Products of sizes are bounded, and lists may be too short.
TEST(Models, ConfigsOfWrongSizesAreErrors) {
  const auto error_with = [](const std::string& name, const std::string& old, const std::string& text) -> std::string {
    for (const CatalogueFile& file : model_files()) {
      if (file.name != name) continue;
      std::string config(file.text);
      const std::size_t found = config.find(old);
      EXPECT_NE(found, std::string::npos) << old;
      try {
        parse_model(config.replace(found, old.size(), text), "m.json");
      } catch (const InputError& error) {
        return error.what();
      }
    }
    return "no error";
  };
  EXPECT_THAT(error_with("minimax-m3", "\"sparse_topk_blocks\": 16", "\"sparse_topk_blocks\": 1048576"),
              testing::HasSubstr("1048576 x 128 is more than 1048576"));
  EXPECT_THAT(error_with("minimax-m3", "\"sparse_attention_freq\": [0, ", "\"sparse_attention_freq\": ["),
              testing::HasSubstr("/sparse_attention_config/sparse_attention_freq: expected 60 layers"));
  EXPECT_THAT(error_with("minimax-m3", "\"num_attention_heads\": 64", "\"num_attention_heads\": []"),
              testing::HasSubstr("/num_attention_heads: expected a number of each layer"));
  EXPECT_THAT(error_with("gemma-4-31b", "\"num_global_key_value_heads\": 4", "\"num_global_key_value_heads\": 5"),
              testing::HasSubstr("/num_global_key_value_heads: expected a divisor of the attention heads"));
}

// As Python's json module writes them; strings keep their text, and errors their column.
TEST(Models, FilesMayHaveTheConstantsOfPython) {
  const auto text_of = [](const std::string& limits) {
    return R"({"name": "Infinity", "limits": )" + limits +
           R"(, "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128})";
  };
  const auto error_of = [](const std::string& text) -> std::string {
    try {
      parse_model(text, "m.json");
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of(text_of("[0.0, Infinity]") + "]"), error_of(text_of("[0.0, 12345678]") + "]"));
  EXPECT_NE(error_of(text_of("[0.0, Infinity]") + "]"), "no error");
  std::string nano;
  for (const CatalogueFile& file : model_files()) {
    if (file.name == "nemotron-3-nano") nano = file.text;
  }
  const std::string with =
      R"({"time_step_limit": [0.0, Infinity, -Infinity, NaN], "note": "a \"NaN\" ",)" + nano.substr(1);
  EXPECT_EQ(parameters(parse_model(with, "m.json")), parameters(named("nemotron-3-nano")));
  EXPECT_NE(error_of(R"({"limits": Infinityx})"), "no error");
}

// Every model of the catalogue, on stages cut anywhere: what stages have adds up to the model, on one device and on
// several, and their times and bytes are positive.
TEST(Models, StagesAddUp) {
  for (const CatalogueFile& file : model_files()) {
    SCOPED_TRACE(file.name);
    const Model model = parse_model(file.text, std::string(file.name));
    Training training{.pp = 3, .sequence_length = 1024};
    const std::vector<StageContents> stages = split_layers(model, 3, {}, 0, 0);
    std::int64_t parameters_of_stages = 0;
    for (const StageContents& stage : stages) parameters_of_stages += stage_parameters_per_device(model, 1, stage);
    const std::int64_t words = (padded_vocab(model, 1) - model.vocab) * model.hidden;  // padding
    const std::int64_t copies = model.tied_embeddings ? padded_vocab(model, 1) * model.hidden : words;
    const std::int64_t predicted = model.mtp_layers * mtp_layer_parameters(model);
    const std::int64_t embedding =
        model.mtp_layers > 0 && !model.tied_embeddings ? words + model.vocab * model.hidden : 0;
    EXPECT_EQ(parameters_of_stages, parameters(model) + words + copies + predicted + embedding);
    const TransformerFootprint footprint(model, training, stages);
    const MicrobatchShape whole{.sequences = 1, .slice_lengths = {1024}};
    const AnalyticCost cost(model, training, stages, load_cluster("dgx-h100", 1), load_software("nemo"));
    for (int stage = 0; stage < 3; ++stage) {
      EXPECT_GT(footprint.slice(stage, whole, 0).activations_to_input_gradient, 0);
      for (const OpKind kind : {OpKind::F, OpKind::I, OpKind::W}) EXPECT_GT(cost.compute_s(kind, stage, whole, 0), 0);
    }
  }
}

// A hybrid model's slices: recurrent blocks cost the same wherever a slice begins, attention does not.
TEST(Models, RecurrentBlocksDoNotDependOnTheContext) {
  const Model model = named("nemotron-3-nano");
  for (std::size_t kind = 0; kind < model.kinds().size(); ++kind) {
    const auto index = static_cast<int>(kind);
    const double first = layer_slice_flops(model, 1024, 0, index).forward();
    const double later = layer_slice_flops(model, 1024, 7168, index).forward();
    if (model.kind(index).name == "attention") {
      EXPECT_GT(later, first);
    } else {
      EXPECT_EQ(later, first);
    }
  }
  // Slices of equal work get shorter, less than those of attention alone.
  const std::vector<std::int64_t> slices = balanced_slices(model, 8192, 4, 1);
  EXPECT_GT(slices.front(), slices.back());
  EXPECT_LT(slices.front(), balanced_slices(named("llama3-8b"), 8192, 4, 1).front());
}

// mamba_chunk_scan_combined takes 1.43 ms on B200 for this layer and 4 x 8,192 tokens, and its convolution 0.245 ms, a
// fourth of that of 64 x 2,048 (kernel_linear_attention). GPUs with faster tensor cores alone do not help.
TEST(Models, ScansTakeWhatMultiprocessorsTake) {
  const Model model = named("nemotron-3-nano");
  Training training;
  training.sequence_length = 8192;
  const auto seconds = [&](const char* cluster, std::string_view kernel) {
    const AnalyticCost cost(model, training, split_layers(model, 1, {}, 0, 0), load_cluster(cluster, 1),
                            load_software("nemo"));
    for (const KernelPart& part : cost.parts(OpKind::F, 0, {4, 8192, 0})) {
      for (const KernelCall& call : part.calls) {
        if (call.name == kernel) return cost.kernel_s(call);
      }
    }
    return 0.0;
  };
  EXPECT_NEAR(seconds("dgx-b200", "scan") / 1.43e-3, 1, 0.1);
  EXPECT_NEAR(seconds("dgx-b200", "convolution") / 0.245e-3, 1, 0.15);
  EXPECT_NEAR(seconds("dgx-h100", "scan") / seconds("dgx-b200", "scan"), 148.0 / 132, 0.01);
}

// Stages with the same layers are alike, wherever they lie in a pattern.
TEST(Models, StagesOfAPatternAreAlike) {
  const Model model = named("qwen3.5-35b-a3b");  // three delta rules, then attention, ten times
  const std::vector<int> layers(10, 4);
  const std::vector<StageContents> stages = split_layers(model, 10, layers, 0, 0);
  for (std::size_t stage = 2; stage + 1 < stages.size(); ++stage) EXPECT_EQ(stages[stage], stages[1]);
  const std::vector<int> shifted = {5, 4, 4, 4, 4, 4, 4, 4, 4, 3};
  const std::vector<StageContents> others = split_layers(model, 10, shifted, 0, 0);
  EXPECT_EQ(others[1], others[2]);
  EXPECT_FALSE(others[1] == stages[1]);
  EXPECT_EQ(layers_by_kind(model, others[1]).size(), layers_by_kind(model, stages[1]).size());
}

// 42 stages of two of nemotron-3-super's 88 layers, whose order has no period, between others of one and three: equal
// sequences of kinds are equal stages wherever they begin, so that a search prices each of them once.
TEST(Models, StagesOfAnIrregularPatternAreAlike) {
  const Model model = named("nemotron-3-super");
  std::vector<int> layers(42, 2);
  layers.insert(layers.begin(), {1});
  layers.insert(layers.end(), {3});
  const std::vector<StageContents> stages = split_layers(model, 44, layers, 0, 0);
  const TransformerFootprint footprint(model, {.pp = 44, .sequence_length = 1024}, stages);
  const MicrobatchShape whole{.sequences = 1, .slice_lengths = {1024}};
  std::map<std::vector<std::uint8_t>, int> first_of;
  for (int stage = 1; stage < 43; ++stage) {
    SCOPED_TRACE(stage);
    const auto begin = model.pattern().begin() + 2 * stage - 1;
    const int first = first_of.try_emplace({begin, begin + 2}, stage).first->second;
    EXPECT_EQ(stages[static_cast<std::size_t>(stage)], stages[static_cast<std::size_t>(first)]);
    EXPECT_EQ(footprint.alike(stage), first);
    EXPECT_EQ(footprint.slice(stage, whole, 0).activations_to_input_gradient,
              footprint.slice(first, whole, 0).activations_to_input_gradient);
  }
  EXPECT_EQ(footprint.alike(43), 43);  // with the head
}

// After the stage with multi-token prediction, an empty stage passes on more than one before it would.
TEST(Models, StagesAfterMultiTokenPredictionAreNotAlike) {
  Model model = named("deepseek-v3");
  const std::vector<int> layers = {61, 0, 0, 0, 0};
  const std::vector<StageContents> stages = split_layers(model, 5, layers, 0, 0, 2);
  const TransformerFootprint footprint(model, {.pp = 5, .sequence_length = 4096}, stages);
  EXPECT_EQ(stages[1], stages[3]);
  EXPECT_EQ(footprint.alike(3), 3);
  const MicrobatchShape whole{.sequences = 1, .slice_lengths = {4096}};
  EXPECT_GT(footprint.slice(3, whole, 0).transfer_forward, footprint.slice(1, whole, 0).transfer_forward);
}

TEST(Models, WindowsLimitThePairsOfAttention) {
  const AttentionCore full{.heads = 1, .kv_heads = 1, .head_dim = 1, .value_head_dim = 1};
  AttentionCore window = full;
  window.window = 128;
  AttentionCore chunk = full;
  chunk.chunk = 128;
  const auto counted = [](double tokens, double context, const auto& keys) {
    double pairs = 0;
    for (double i = context; i < context + tokens; ++i) pairs += keys(i) + 0.5;
    return pairs;
  };
  for (const double context : {0.0, 64.0, 100.0, 1000.0}) {
    EXPECT_EQ(full.pairs(256, context), counted(256, context, [](double i) { return i; }));
    EXPECT_NEAR(window.pairs(256, context), counted(256, context, [](double i) { return std::min(i, 127.5); }), 1);
    EXPECT_NEAR(chunk.pairs(256, context), counted(256, context, [](double i) { return std::fmod(i, 128); }), 1e-6);
  }
}

}  // namespace
}  // namespace sluice::test
