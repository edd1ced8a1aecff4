#include <gtest/gtest.h>

#include "model/blocks/transformer_footprint.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

Training expert_training_of(int tp, int cp, int dp, int ep) {
  Training training;
  training.tp = tp;
  training.cp = cp;
  training.dp = dp;
  training.ep = ep;
  training.sequence_parallel = tp > 1;
  training.sequence_length = 4096;
  training.distributed_optimizer = true;
  return training;
}

TEST(ExpertMemory, DistributesExpertsOverTheirRanks) {
  const Transformer model = example("mixtral-8x7b/config.json");
  const std::vector<StageContents> stages = split_layers(model, 1, {}, 0, 0);
  const std::int64_t expert = 32 * 3 * std::int64_t{4096} * 14336;  // one of the 8 in every layer
  const std::int64_t rest = parameters(model) - 8 * expert;
  EXPECT_EQ(rest % 16, 0);
  for (const int ep : {1, 2, 8}) {
    const StageBytes bytes = TransformerFootprint(model, expert_training_of(1, 1, 16, ep), stages).stage(0);
    EXPECT_EQ(bytes.weights, 2 * (rest + 8 / ep * expert));
    EXPECT_EQ(bytes.reduced, 4 * (rest + 8 / ep * expert));
    // Optimizer state: of the rest over 16 ranks, of a rank's experts over the 16 / ep replicas.
    EXPECT_EQ(bytes.optimizer, 12 * (rest / 16 + 8 / ep * expert / (16 / ep)));
  }
}

TEST(ExpertMemory, DistributesPartsOfExperts) {
  const Transformer model = example("mixtral-8x7b/config.json");
  const std::vector<StageContents> stages = split_layers(model, 1, {}, 0, 0);
  Training whole = expert_training_of(2, 1, 8, 8);
  Training parts = expert_training_of(2, 1, 8, 4);
  parts.etp = 2;
  const StageBytes one = TransformerFootprint(model, whole, stages).stage(0);
  const StageBytes other = TransformerFootprint(model, parts, stages).stage(0);
  EXPECT_EQ(one.weights, other.weights);  // 1/8 of the experts, either way
  EXPECT_EQ(one.optimizer, other.optimizer);
  // The rows of both ranks with parts of the same experts come to each: 2n more of h for W, and of gradients.
  const SliceBytes rows = TransformerFootprint(model, whole, stages).slice(0, {1, {4096}}, 0);
  const SliceBytes more = TransformerFootprint(model, parts, stages).slice(0, {1, {4096}}, 0);
  const std::int64_t copies = 4096 / 2 * 2;
  EXPECT_EQ(more.activations_to_weight_gradient - rows.activations_to_weight_gradient, 32 * 2 * copies * 4096);
  EXPECT_EQ(more.gradients_to_weight_gradient - rows.gradients_to_weight_gradient, 32 * 2 * copies * 4096);
  EXPECT_EQ(more.activations_to_input_gradient, rows.activations_to_input_gradient);
  const auto error = [&](int ep, int etp) {
    Training training = expert_training_of(2, 1, 8, ep);
    training.etp = etp;
    return error_of([&] { check_training(model, training); });
  };
  EXPECT_EQ(error(4, 8),
            "/parallelism/etp: expert-parallel size 4 x expert-tensor-parallel size 8 must divide tp 2 x cp 1 x dp 8");
  EXPECT_EQ(error(1, 3),
            "/parallelism/etp: mixtral-8x7b: the feed-forward size of an expert (14336) must be a multiple of the "
            "expert-tensor-parallel size (3)");
  Training dense = expert_training_of(1, 1, 2, 1);
  dense.etp = 2;
  EXPECT_EQ(error_of([&] { check_training(example("llama3-8b/config.json"), dense); }),
            "/parallelism/etp: llama3-8b: expert-tensor-parallel size 2, but there are no experts");
}

TEST(ExpertMemory, OfALayerIsThatOfItsKernelsInputs) {
  // Mixtral, n tokens: layer input, second residual, Q, then K and V of 1024 each; QKV input, attention output,
  // router input, all of 4096. Two copies of each token, their activation's inputs of 2 x 14336 and outputs of 14336.
  const Transformer model = example("mixtral-8x7b/config.json");
  const std::int64_t n = 4096, h = 4096, f = 14336;
  const SliceBytes bytes =
      TransformerFootprint(model, expert_training_of(1, 1, 8, 8), {{.layers = 3, .expert_layers = 2}})
          .slice(0, {1, {n}}, 0);
  const std::int64_t router = n * 8 * (2 + 4 + 4 + 1 + 8);
  EXPECT_EQ(bytes.activations_to_input_gradient, 3 * 2 * n * 3 * h + 2 * n * 2 * f + 2 * (2 * 2 * n * 2 * f + router));
  EXPECT_EQ(bytes.activations_to_weight_gradient, 3 * 2 * n * 3 * h + 2 * n * f + 2 * 2 * 2 * n * (h + f));
  EXPECT_EQ(bytes.keys_values, 3 * 2 * n * 2048);
}

TEST(ExpertMemory, IsOfTheBusiestRank) {
  const Transformer model = example("mixtral-8x7b/config.json");
  const auto bytes_of = [&](double imbalance, double capacity, bool pads) {
    Training training = expert_training_of(1, 1, 8, 8);
    training.expert_imbalance = imbalance;
    training.expert_capacity = capacity;
    training.pads_experts = pads;
    return TransformerFootprint(model, training, {{.layers = 2, .expert_layers = 2}})
        .slice(0, {1, {4096}}, 0)
        .activations_to_weight_gradient;
  };
  // Two layers, two experts per token: 16-bit inputs of 4096 and activations of 14336.
  const std::int64_t rows = std::int64_t{2} * 2 * 2 * 4096 * (4096 + 14336);
  const std::int64_t even = bytes_of(1, 0, false);
  EXPECT_EQ(bytes_of(1.5, 0, false), even + rows / 2);
  EXPECT_EQ(bytes_of(3, 1.25, false), even + rows / 4);
  EXPECT_EQ(bytes_of(1, 1.25, false), even);
  EXPECT_EQ(bytes_of(1, 1.25, true), even + rows / 4);
}

TEST(ExpertMemory, StoresTheInputsOfTheClampAndOfTheActivation) {
  Transformer model = gpt_oss_120b();
  const auto bytes_of = [&](RecomputeModules modules, bool fused) {
    Training training = expert_training_of(1, 1, 64, 64);
    if (modules != RecomputeModules()) training.recompute = Training::Recompute::selective;
    training.recompute_modules = modules;
    training.fused_grouped_mlp = fused;
    return TransformerFootprint(model, training, {{.layers = 2, .expert_layers = 2}})
        .slice(0, {1, {4096}}, 0)
        .activations_to_input_gradient;
  };
  const std::int64_t inputs = std::int64_t{2} * 2 * 4 * 4096 * 5760;
  const std::int64_t clamped = bytes_of({}, false);
  const std::int64_t again = bytes_of(RecomputeModules(RecomputeModule::activation), false);
  const std::int64_t fused = bytes_of({}, true);
  model.experts.clamp = 0;
  EXPECT_EQ(clamped, bytes_of({}, false) + inputs);
  EXPECT_EQ(again, bytes_of(RecomputeModules(RecomputeModule::activation), false));
  EXPECT_EQ(fused, bytes_of({}, true));
}

TEST(LatentMemory, StoresHeadsAndLatents) {
  // DeepSeek-V2's dense layer: queries and keys of 128 x 192, values and output of 128 x 128, latents of 1536 and 512
  // before and after their norms, and 64 elements of the keys' position.
  const Transformer model = example("deepseek-v2/config.json");
  const std::int64_t n = 4096, h = 5120, f = 12288;
  const SliceBytes bytes =
      TransformerFootprint(model, expert_training_of(1, 1, 1, 1), {{.layers = 1}}).slice(0, {1, {n}}, 0);
  EXPECT_EQ(bytes.keys_values, 2 * n * 128 * (192 + 128));
  EXPECT_EQ(bytes.activations_to_input_gradient, 2 * n * (2 * h + 128 * 192 + 2 * f + 1536 + 512 + 64));
  EXPECT_EQ(bytes.activations_to_weight_gradient, 2 * n * (2 * h + 128 * 128 + f + 1536 + 512));
}

TEST(ContextMemory, IsOfTheOwnTokens) {
  const Transformer model = example("llama3-8b/config.json");
  const std::vector<StageContents> stages = split_layers(model, 1, {}, 0, 0);
  const auto bytes = [&](int cp, std::int64_t tokens) {
    Training training = expert_training_of(1, cp, 1, 1);
    training.sequence_length = tokens;
    return TransformerFootprint(model, training, stages).slice(0, {2, {tokens}}, 0);
  };
  EXPECT_EQ(bytes(4, 16384).activations_to_input_gradient, bytes(1, 4096).activations_to_input_gradient);
  EXPECT_EQ(bytes(4, 16384).transfer_backward, bytes(1, 4096).transfer_backward);
  // The optimizer state is also sharded over the context ranks, which have the same weights.
  const auto optimizer = [&](int cp) {
    return TransformerFootprint(model, expert_training_of(1, cp, 2, 1), stages).stage(0).optimizer;
  };
  EXPECT_EQ(optimizer(4) * 4, optimizer(1));
}

TEST(ExpertLayers, FollowTheDenseOnes) {
  const Transformer model = example("deepseek-v3/config.json");  // 61 layers, 3 of them dense
  const std::vector<StageContents> stages = split_layers(model, 30, {}, 0, 0);
  EXPECT_EQ(stages[0], (StageContents{.layers = 2, .expert_layers = 0, .embedding = true}));
  EXPECT_EQ(stages[1], (StageContents{.layers = 2, .expert_layers = 1}));
  EXPECT_EQ(stages[2], (StageContents{.layers = 2, .expert_layers = 2}));
  std::int64_t count = 0;
  for (const StageContents& stage : stages) count += stage_parameters_per_device(model, 1, stage);
  // 129,280 words are a multiple of 128. The layer of multi-token prediction has a copy of the embedding.
  EXPECT_EQ(count, parameters(model) + mtp_layer_parameters(model) + std::int64_t{129280} * 7168);
}

TEST(CheckTraining, NamesTheRequirementsOfExpertsAndContext) {
  const auto error = [](const char* name, const Training& training) {
    const Transformer model = example(name);
    return error_of([&] { check_training(model, training); });
  };
  const char* mixtral = "mixtral-8x7b/config.json";
  EXPECT_EQ(error(mixtral, expert_training_of(2, 2, 2, 8)), "no error");
  EXPECT_EQ(error("llama3-8b/config.json", expert_training_of(1, 1, 2, 2)),
            "/parallelism/ep: llama3-8b: expert-parallel size 2, but there are no experts");
  EXPECT_EQ(error(mixtral, expert_training_of(1, 1, 3, 3)),
            "/parallelism/ep: mixtral-8x7b: experts (8) must be a multiple of the expert-parallel size (3)");
  EXPECT_EQ(error(mixtral, expert_training_of(1, 1, 2, 4)),
            "/parallelism/ep: expert-parallel size 4 must divide tp 1 x cp 1 x dp 2");
  Training unsplit = expert_training_of(2, 1, 1, 1);
  unsplit.sequence_parallel = false;
  EXPECT_EQ(
      error(mixtral, unsplit),
      "/parallelism/sequence_parallel: mixtral-8x7b: experts with tensor parallelism need it (--sequence-parallel)");
  EXPECT_EQ(error(mixtral, expert_training_of(1, 3, 1, 1)),
            "/parallelism/cp: sequence length 4096 must be a multiple of twice the context-parallel size (3)");
  Training unfused = expert_training_of(1, 2, 1, 1);
  unfused.flash_attention = false;
  EXPECT_EQ(error(mixtral, unfused), "/parallelism/flash_attention: context parallelism needs flash attention");
  Training heads = expert_training_of(1, 16, 1, 1);
  heads.context_exchange = Training::ContextExchange::all_to_all;
  EXPECT_EQ(error(mixtral, heads),
            "/parallelism/cp: mixtral-8x7b: 32 attention and 8 key/value heads of a tensor rank must be multiples of "
            "the context-parallel "
            "size (16) with a2a");
  heads.cp = 2;
  EXPECT_EQ(
      error("deepseek-v2/config.json", heads),
      "/parallelism/cp_comm_type: deepseek-v2: latent attention with context parallelism is modeled only for p2p");
  unfused.cp = 1;
  EXPECT_EQ(error("deepseek-v2/config.json", unfused),
            "/parallelism/flash_attention: deepseek-v2: latent attention needs flash attention");
}

}  // namespace
}  // namespace sluice::test
