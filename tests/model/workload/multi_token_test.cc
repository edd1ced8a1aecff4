// Multi-token prediction: parameters, FLOPs, kernels, bytes and the stages that have it.

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "model/blocks/transformer_footprint.h"
#include "model/cluster/catalogue.h"
#include "model/cost/analytic.h"
#include "model/errors.h"
#include "model/scenario/scenario.h"
#include "model/scenario/setup.h"
#include "model/to_size.h"
#include "sim/engine/predict.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

// A model with embeddings of its own for the head, and one layer of multi-token prediction.
Transformer dense_model() {
  Transformer model = example("llama3-8b/config.json");
  model.mtp_layers = 1;
  return model;
}

TEST(MultiTokenPrediction, HasTheParametersOfTheCheckpoint) {
  // Model card of DeepSeek-V3: 685 billion, of which 671 are the main model's and 14 those of the module, with copies
  // of embedding and head (README_WEIGHTS: 0.9 billion each; 11.5 without them).
  const Transformer model = example("deepseek-v3/config.json");
  EXPECT_EQ(model.mtp_layers, 1);
  const std::int64_t h = 7168;
  const std::int64_t layer = layer_parameters(model, LayerKind::experts);
  EXPECT_NEAR(static_cast<double>(layer), 11.5e9, 0.01e9);
  EXPECT_EQ(mtp_layer_parameters(model), layer + 2 * h * h + 3 * h);
  const std::int64_t module = mtp_layer_parameters(model) + std::int64_t{2} * 129280 * h;
  EXPECT_NEAR(static_cast<double>(module), 13.5e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(parameters(model) + module), 684.5e9, 0.05e9);
}

TEST(MultiTokenPrediction, CountsItsLayerProjectionAndHeadInModelFlops) {
  // As Megatron-LM's num_floating_point_operations: one more layer, 2 x 2h x h, and another pass of the head.
  const Transformer model = dense_model();
  Transformer without = model;
  without.mtp_layers = 0;
  const double s = 4096, h = model.hidden, words = static_cast<double>(model.vocab);
  const double more = layer_model_flops(model, 4096) + 4 * s * h * h + 2 * s * h * words;
  EXPECT_DOUBLE_EQ(iteration_model_flops(model, 4096, 2, false),
                   iteration_model_flops(without, 4096, 2, false) + 2 * 3 * more);
}

TEST(MultiTokenPrediction, LiesOnTheLastStageOrOnOneBeforeAnOnlyHead) {
  const Transformer model = dense_model();  // 32 layers
  const std::vector<StageContents> last = split_layers(model, 4, {}, 0, 0);
  EXPECT_EQ(last[3].mtp_layers, 1);
  EXPECT_TRUE(last[3].mtp_embedding);
  EXPECT_EQ(last[2].mtp_layers, 0);
  const std::vector<int> layers = {11, 11, 10, 0};
  const std::vector<StageContents> before = split_layers(model, 4, layers, 0, 0, 2);
  EXPECT_EQ(before[2].mtp_layers, 1);
  EXPECT_TRUE(before[2].mtp_embedding);
  EXPECT_FALSE(before[3].mtp_embedding);
  EXPECT_FALSE(split_layers(model, 1, {}, 0, 0)[0].mtp_embedding);
  // A tied head has a copy of the embedding already.
  Transformer tied = model;
  tied.tied_embeddings = true;
  EXPECT_FALSE(split_layers(tied, 4, {}, 0, 0)[3].mtp_embedding);
  EXPECT_THROW(split_layers(model, 4, {}, 0, 0, 2), InputError);  // the last stage has layers
  EXPECT_THROW(split_layers(model, 4, layers, 0, 0, 4), InputError);
}

TEST(MultiTokenPrediction, AddsItsParametersAndACopyOfTheEmbeddingToAStage) {
  const Transformer model = dense_model();
  const std::int64_t words = padded_vocab(model, 1) * model.hidden;
  const StageContents plain{.layers = 2};
  StageContents held = plain;
  held.mtp_layers = 1;
  EXPECT_EQ(stage_parameters_per_device(model, 1, held) - stage_parameters_per_device(model, 1, plain),
            mtp_layer_parameters(model));
  held.mtp_embedding = true;
  EXPECT_EQ(stage_parameters_per_device(model, 1, held) - stage_parameters_per_device(model, 1, plain),
            mtp_layer_parameters(model) + words);
  // Its experts are distributed like those of any other layer.
  const Transformer mixture = example("deepseek-v3/config.json");
  const StageContents experts{.layers = 1, .expert_layers = 1, .mtp_layers = 1};
  EXPECT_EQ(stage_expert_parameters_per_device(mixture, experts, 8), 2 * routed_expert_parameters(mixture) / 8);
}

TEST(MultiTokenPrediction, StoresItsInputsAndEachPassOfTheHead) {
  // 16-bit elements of n = 8192 rows of h: inputs of both norms and, for W, the inputs of the projection, 2 nh each.
  Transformer model = dense_model();
  const Training training{.sequence_length = 8192};
  const MicrobatchShape shape{.sequences = 1, .slice_lengths = {8192}};
  const std::int64_t nh = std::int64_t{8192} * model.hidden;
  const StageContents middle{.layers = 1, .mtp_layers = 1};
  const TransformerFootprint footprint(model, training, {{.layers = 2}, middle, {.head = true}});
  const SliceBytes two = footprint.slice(0, shape, 0);
  const SliceBytes with = footprint.slice(1, shape, 0);
  EXPECT_EQ(with.activations_to_input_gradient - two.activations_to_input_gradient, 4 * nh);
  EXPECT_EQ(with.activations_to_weight_gradient - two.activations_to_weight_gradient, 4 * nh);
  EXPECT_EQ(with.gradients_to_weight_gradient - two.gradients_to_weight_gradient, 2 * nh);
  // The hidden states of both go on to the head, and their gradients come back.
  EXPECT_EQ(two.transfer_forward, 2 * nh);
  EXPECT_EQ(with.transfer_backward, 2 * nh);
  EXPECT_EQ(with.transfer_forward, 4 * nh);
  const SliceBytes head = footprint.slice(2, shape, 0);
  EXPECT_EQ(head.transfer_backward, 4 * nh);
  model.mtp_layers = 0;
  const SliceBytes one_pass = TransformerFootprint(model, training, {{.layers = 2}, {.head = true}}).slice(1, shape, 0);
  EXPECT_EQ(head.activations_to_input_gradient, 2 * one_pass.activations_to_input_gradient);
  EXPECT_EQ(head.activations_to_weight_gradient, 2 * one_pass.activations_to_weight_gradient);
}

TEST(MultiTokenPrediction, IsRecomputedFromBothInputsWithAllLayers) {
  const Transformer model = dense_model();
  Training training{.sequence_length = 8192, .recompute = Training::Recompute::full};
  const MicrobatchShape shape{.sequences = 1, .slice_lengths = {8192}};
  const std::int64_t nh = std::int64_t{8192} * model.hidden;
  const std::vector<StageContents> stages = {{.layers = 2, .embedding = true}, {.mtp_layers = 1}, {.head = true}};
  EXPECT_EQ(TransformerFootprint(model, training, stages).slice(1, shape, 0).activations_to_input_gradient, 4 * nh);
  const Cluster cluster = load_cluster("dgx-h100", 1);
  const auto time = [&](const Training& of) {
    return AnalyticCost(model, of, stages, cluster, load_software("megatron-lm")).recompute_s(1, shape, 0);
  };
  EXPECT_GT(time(training), 0);
  training.recompute_layers = 1;  // Megatron-LM's method block leaves it out
  EXPECT_EQ(time(training), 0);
}

TEST(MultiTokenPrediction, TakesTheTimeOfItsLayerProjectionAndPasses) {
  const Transformer model = dense_model();
  Transformer without = model;
  without.mtp_layers = 0;
  const MicrobatchShape shape{.sequences = 1, .slice_lengths = {8192}};
  for (const int tp : {1, 4}) {
    const Training training{.tp = tp, .sequence_length = 8192, .sequence_parallel = tp > 1};
    const Cluster cluster = load_cluster("dgx-h100", 1);
    Cluster without_communication = cluster;
    without_communication.intra_node = {.bandwidth_bytes_per_s = 1e18};
    const std::vector<StageContents> stages = {{.layers = 1}, {.layers = 1, .mtp_layers = 1}, {.head = true}};
    const AnalyticCost cost(model, training, stages, cluster, load_software("megatron-lm"));
    const AnalyticCost compute(model, training, stages, without_communication, load_software("megatron-lm"));
    const AnalyticCost plain(without, training, {{.layers = 1}, {.head = true}}, cluster, load_software("megatron-lm"));
    for (const OpKind kind : {OpKind::F, OpKind::I, OpKind::W, OpKind::B}) {
      const double layer = cost.compute_s(kind, 0, shape, 0);
      const double both = cost.compute_s(kind, 1, shape, 0);
      EXPECT_GT(both, 2 * layer);
      // The projection of 2h x h is 1/13 of the layer's GEMMs. Its collectives are 3/4 of the layer's.
      EXPECT_LT(compute.compute_s(kind, 1, shape, 0), 2.5 * compute.compute_s(kind, 0, shape, 0));
      EXPECT_LT(both, 2.75 * layer);
      EXPECT_NEAR(cost.compute_s(kind, 2, shape, 0), 2 * plain.compute_s(kind, 1, shape, 0), 1e-9);
    }
    EXPECT_NEAR(cost.compute_s(OpKind::B, 1, shape, 0),
                cost.compute_s(OpKind::I, 1, shape, 0) + cost.compute_s(OpKind::W, 1, shape, 0), 1e-4);
  }
}

Scenario scenario_with(const std::string& parallelism, const std::string& rest = "") {
  const std::string text = R"({"model": "llama3-8b", "cluster": "dgx-h100", "mtp_num_layers": 1, "parallelism": {)" +
                           parallelism + R"(}, "batch": {"microbatches": 8, "sequence_length": 4096})" + rest + "}";
  return scenario_from_json(nlohmann::json::parse(text), "test", "");
}

TEST(MultiTokenPrediction, IsPlacedByALayout) {
  const Scenario alone = scenario_with(R"("pp": 4, "pipeline_layout": "Et*11|t*11|t*10m|L")");
  EXPECT_EQ(alone.mtp_stage, 2);
  const model::Setup setup(alone);
  EXPECT_EQ(setup.stages()[2].mtp_layers, 1);
  EXPECT_EQ(model::Setup(scenario_with(R"("pp": 4, "pipeline_layout": "Et*11|t*11|t*10|mL")")).stages()[3].mtp_layers,
            1);
  EXPECT_EQ(model::Setup(scenario_with(R"("pp": 4)")).stages()[3].mtp_layers, 1);
  try {
    scenario_with(R"("pp": 4, "pipeline_layout": "Et*11|t*11|t*10|L")");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "test: /parallelism/pipeline_layout: expected as many m as layers for multi-token prediction "
                 "(--mtp-num-layers), 1, not 0, got \"Et*11|t*11|t*10|L\"");
  }
}

// Hidden states on each hop, and copies of shared weights, as in Megatron-LM#5318 (pp 8, vpp 2, three predictions).
TEST(MultiTokenPrediction, IsSpreadOverStages) {
  const auto setup_of = [](const std::string& layout, bool tied) {
    const std::string text =
        R"({"model": {"num_layers": 10, "hidden_size": 1024, "num_attention_heads": 8, "vocab_size": 8192,
            "mtp_num_layers": 3, "position_embedding_type": "rope", "untie_embeddings_and_output_weights": )" +
        std::string(tied ? "false" : "true") + R"(}, "cluster": "dgx-h100", "schedule": "interleaved-1f1b",
            "parallelism": {"pp": 8, "pipeline_layout": ")" +
        layout + R"("}, "batch": {"microbatches": 8, "sequence_length": 1024}})";
    return std::make_unique<model::Setup>(scenario_from_json(nlohmann::json::parse(text), "test", ""));
  };
  const std::vector<int> hops = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 4, 2};
  for (const bool tied : {false, true}) {
    const auto spread = setup_of("E|(t|)*10m|m|m|LL|LL", tied);
    const auto whole = setup_of("E|(t|)*10|m*3|||L", tied);
    const MicrobatchShape& shape = spread->schedule().shapes()[0];
    const auto bytes = [&](const model::Setup& setup, int stage) {
      return setup.lowering_options().footprint->slice(stage, shape, 0);
    };
    const std::int64_t boundary = bytes(*spread, 0).transfer_forward;
    for (int stage = 0; stage < 15; ++stage) {
      EXPECT_EQ(bytes(*spread, stage).transfer_forward, hops[to_size(stage)] * boundary) << stage;
      EXPECT_EQ(bytes(*spread, stage + 1).transfer_backward, hops[to_size(stage)] * boundary) << stage;
    }
    EXPECT_EQ(bytes(*spread, 15).transfer_forward, 0);
    // The same work, on other stages: but for copies of the embedding and of the output layer.
    const auto sum = [&](const model::Setup& setup, OpKind kind) {
      double seconds = 0;
      for (int stage = 0; stage < 16; ++stage) seconds += setup.cost().compute_s(kind, stage, shape, 0);
      return seconds;
    };
    for (const OpKind kind : {OpKind::F, OpKind::B}) {
      EXPECT_NEAR(sum(*spread, kind), sum(*whole, kind), 1e-9 * sum(*whole, kind));
    }
    const auto copies = [&](const model::Setup& setup) {
      std::int64_t count = 0;
      for (const StageContents& of : setup.stages())
        count += stage_parameters_per_device(*setup.scenario().model, 1, of);
      return count;
    };
    // Three predictions with an embedding each instead of one, and two heads instead of one, with a final norm.
    EXPECT_EQ(copies(*spread) - copies(*whole), 3 * padded_vocab(8192, 1) * 1024 + 2 * 1024) << tied;
    std::set<std::vector<int>> groups;
    const OpGraph& graph = spread->graph();
    for (VertexId v = 0; v < graph.size(); ++v) {
      if (graph[v].kind != VertexKind::collective) continue;
      const Collective collective = graph.collective(graph[v]);
      if (collective.kind != CollectiveKind::tied_embedding) continue;
      EXPECT_EQ(collective.bytes, padded_vocab(8192, 1) * 1024 * 4);
      groups.emplace(collective.ranks.begin(), collective.ranks.end());
    }
    // Stage s is on rank s mod 8: the embedding with 0, 11, 12 and 13, the output layers on 14 and 15.
    const std::set<std::vector<int>> expected =
        tied ? std::set<std::vector<int>>{{0, 3, 4, 5, 6, 7}} : std::set<std::vector<int>>{{0, 3, 4, 5}, {6, 7}};
    EXPECT_EQ(groups, expected);
  }
}

TEST(MultiTokenPrediction, ReducesTheGradientOfItsEmbeddingBetweenRanks) {
  const auto shared = [](const Scenario& scenario) {
    const model::Setup setup(scenario);
    int count = 0;
    for (VertexId v = 0; v < setup.graph().size(); ++v) {
      if (setup.graph()[v].kind != VertexKind::collective) continue;
      const Collective collective = setup.graph().collective(setup.graph()[v]);
      if (collective.kind != CollectiveKind::tied_embedding) continue;
      ++count;
      EXPECT_GT(collective.bytes, 0);
    }
    return count;
  };
  EXPECT_GT(shared(scenario_with(R"("pp": 4)")), 0);
  EXPECT_GT(shared(scenario_with(R"("pp": 4, "pipeline_layout": "Et*11|t*11|t*10m|L")")), 0);
  EXPECT_EQ(shared(scenario_with(R"("pp": 1)")), 0);
  // The first and the last stage are on one rank.
  EXPECT_EQ(shared(scenario_with(R"("pp": 4)", R"(, "schedule": "zb-v")")), 0);
}

TEST(MultiTokenPrediction, LengthensAnIterationInEveryFamily) {
  for (const Family& family : all_families()) {
    if (family.vocabulary_barriers > 0) continue;
    Scenario with = scenario_with(R"("pp": 4)", R"(, "schedule": ")" + std::string(family.name) + '"');
    with.microbatches = family.name == "hanayo" ? 4 : 8;
    Scenario without = with;
    without.model->mtp_layers = 0;
    const Duration plain = predict(model::Setup(without)).iteration;
    if (family.name == "pipedream") {  // a step after every backward
      EXPECT_THROW(model::Setup{with}, InputError);
      continue;
    }
    EXPECT_GT(predict(model::Setup(with)).iteration, plain) << family.name;
  }
}

}  // namespace
}  // namespace sluice::test
