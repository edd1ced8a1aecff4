#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "model/blocks/transformer_footprint.h"
#include "tests/model/workload/models.h"

namespace sluice::test {
namespace {

using Recompute = Training::Recompute;

Training training_of(int tp, bool sequence_parallel, bool flash, Recompute recompute = Recompute::none) {
  Training training;
  training.tp = tp;
  training.sequence_parallel = sequence_parallel;
  training.flash_attention = flash;
  training.recompute = recompute;
  training.micro_batch = 2;
  training.sequence_length = 2048;
  return training;
}

// Bytes stored from F until the last op of the backward pass, on a stage of `layers` layers only.
std::int64_t kept(const SliceBytes& bytes) {
  return bytes.activations_to_input_gradient + bytes.activations_to_weight_gradient + bytes.keys_values;
}

SliceBytes one_layer(const Transformer& model, const Training& training) {
  return TransformerFootprint(model, training, {{.layers = 1}})
      .slice(0, {training.micro_batch, {training.sequence_length}}, 0);
}

TEST(Activations, MatchKorthikanti) {
  const Transformer model = example("gpt3-175b.json");
  const std::int64_t s = 2048, b = 2, h = 12288, a = 96;
  // eq. 1: s b h (34 + 5 a s / h)
  EXPECT_EQ(kept(one_layer(model, training_of(1, false, false))), s * b * h * 34 + 5 * a * s * s * b);
  for (const int t : {2, 4, 8}) {
    // eq. 2: s b h (10 + 24/t + 5 a s / (h t))
    EXPECT_EQ(kept(one_layer(model, training_of(t, false, false))),
              s * b * h * 10 + s * b * h * 24 / t + 5 * a * s * s * b / t);
    // eq. 4: s b h / t (34 + 5 a s / h)
    EXPECT_EQ(kept(one_layer(model, training_of(t, true, false))), (s * b * h * 34 + 5 * a * s * s * b) / t);
    // Selective recomputation and flash attention: without the scores' term.
    EXPECT_EQ(kept(one_layer(model, training_of(t, true, false, Recompute::selective))), s * b * h * 34 / t);
    EXPECT_EQ(kept(one_layer(model, training_of(t, true, true))), s * b * h * 34 / t);
    // Full recomputation: 2 s b h, split only by sequence parallelism.
    EXPECT_EQ(kept(one_layer(model, training_of(t, false, false, Recompute::full))), 2 * s * b * h);
    EXPECT_EQ(kept(one_layer(model, training_of(t, true, true, Recompute::full))), 2 * s * b * h / t);
  }
}

TEST(Activations, WithoutDropoutHaveNoMasks) {
  Transformer model = example("gpt3-175b.json");
  model.dropout = false;
  const std::int64_t s = 2048, b = 2, h = 12288, a = 96;
  EXPECT_EQ(kept(one_layer(model, training_of(1, false, false))), s * b * h * 32 + 2 * a * s * s * b);
}

TEST(Activations, AreStoredUntilTheirGradientsEnd) {
  // Elements per token of GPT: to the input gradient 2h + h + 4h and two masks of h bytes; K and V 2h; to the weight
  // gradient h + h + h + 4h; output gradients 3h + h + 4h + h.
  const Transformer model = example("gpt3-175b.json");
  const std::int64_t nh = 2048 * 2 * std::int64_t{12288};
  const SliceBytes bytes = one_layer(model, training_of(1, false, true));
  EXPECT_EQ(bytes.activations_to_input_gradient, 2 * 7 * nh + 2 * nh);
  EXPECT_EQ(bytes.keys_values, 2 * 2 * nh);
  EXPECT_EQ(bytes.activations_to_weight_gradient, 2 * 7 * nh);
  EXPECT_EQ(bytes.gradients_to_weight_gradient, 2 * 9 * nh);
  EXPECT_EQ(bytes.keys_values_gradient, 0);
  EXPECT_EQ(bytes.transfer_forward, 2 * nh);
}

TEST(Activations, OfGroupedQueryAndGatedLayers) {
  // Llama-3-8B: h 4096, K and V 2 x 1024, f 14336; a token's elements are 2h + h + 2f, 2048, 3h + f.
  const SliceBytes bytes = one_layer(example("llama3-8b/config.json"), training_of(1, false, true));
  const std::int64_t n = 2048 * 2;
  EXPECT_EQ(bytes.activations_to_input_gradient, 2 * n * (3 * 4096 + 2 * 14336));
  EXPECT_EQ(bytes.keys_values, 2 * n * 2048);
  EXPECT_EQ(bytes.activations_to_weight_gradient, 2 * n * (3 * 4096 + 14336));
  Training narrow = training_of(1, false, true);
  narrow.narrow_activation_inputs = true;
  EXPECT_EQ(one_layer(example("llama3-8b/config.json"), narrow).activations_to_input_gradient,
            n * (2 * 3 * 4096 + 2 * 14336));
  EXPECT_EQ(bytes.gradients_to_weight_gradient, 2 * n * (4096 + 2048 + 4096 + 2 * 14336 + 4096));
}

TEST(Activations, OfSlicesAddUpToTheWhole) {
  const TransformerFootprint footprint(example("llama3-8b/config.json"), training_of(2, true, true), {{.layers = 3}});
  const MicrobatchShape whole{2, {2048}};
  const MicrobatchShape cut{2, {1000, 600, 448}};
  std::int64_t sum = 0;
  for (int slice = 0; slice < 3; ++slice) sum += kept(footprint.slice(0, cut, slice));
  EXPECT_EQ(sum, kept(footprint.slice(0, whole, 0)));
  // Gradients of K and V in 32 bit, where later slices add to them.
  EXPECT_EQ(footprint.slice(0, cut, 0).keys_values_gradient, 2 * footprint.slice(0, cut, 0).keys_values);
  EXPECT_EQ(footprint.slice(0, whole, 0).keys_values_gradient, 0);
}

TEST(Activations, OfSlicesUnderFullRecomputationIncludeKeysAndValues) {
  const TransformerFootprint footprint(example("llama3-8b/config.json"), training_of(1, false, true, Recompute::full),
                                       {{.layers = 3}});
  EXPECT_EQ(footprint.slice(0, {2, {2048}}, 0).keys_values, 0);
  EXPECT_EQ(footprint.slice(0, {2, {1024, 1024}}, 0).keys_values, 3 * 2 * 2 * 1024 * 2048);
}

TEST(Head, StoresLogitsOfItsShardOfThePaddedVocabulary) {
  // 50257 words are padded to a multiple of 128 x 2 = 50432: 25216 per device.
  Transformer model = example("gpt2/config.json");
  model.dropout = false;
  Training training = training_of(2, false, true);
  training.sequence_length = 1024;
  const TransformerFootprint with(model, training, {{.layers = 6}, {.layers = 6, .head = true, .tied_copy = true}});
  const TransformerFootprint without(model, training, {{.layers = 6}, {.layers = 6}});
  const MicrobatchShape shape{2, {1024}};
  const std::int64_t n = 2048;
  EXPECT_EQ(with.slice(1, shape, 0).activations_to_input_gradient,
            without.slice(1, shape, 0).activations_to_input_gradient + 2 * n * 768 + 4 * n * 25216);
  EXPECT_EQ(with.slice(1, shape, 0).backward_workspace, 2 * n * 25216);
  EXPECT_EQ(with.slice(1, shape, 0).transfer_forward, 0);
  EXPECT_EQ(with.tied_embedding_bytes(), 4 * std::int64_t{25216} * 768);
  EXPECT_EQ(without.tied_embedding_bytes(), 0);
  // The tied copy and the final norm.
  EXPECT_EQ(with.stage(1).weights - without.stage(1).weights, 2 * (std::int64_t{25216} * 768 + 2 * 768));
}

TEST(StageMemory, Is16Or18BytesPerParameter) {
  const Transformer model = example("llama3-8b/config.json");
  Training training = training_of(1, false, true);
  training.dp = 4;
  const std::int64_t count = parameters(model);  // 128256 words need no padding
  const std::vector<StageContents> all = split_layers(model, 1, {}, 0, 0);
  const StageBytes plain = TransformerFootprint(model, training, all).stage(0);
  EXPECT_EQ(plain.weights, 2 * count);
  EXPECT_EQ(plain.gradients, 4 * count);
  EXPECT_EQ(plain.optimizer, 12 * count);
  EXPECT_EQ(plain.reduced, 4 * count);
  EXPECT_EQ(plain.gathered, 0);
  training.distributed_optimizer = true;
  training.gradient_bytes = 2;
  const StageBytes sharded = TransformerFootprint(model, training, all).stage(0);
  EXPECT_EQ(sharded.gradients, 2 * count);
  EXPECT_EQ(sharded.optimizer, 3 * count);
  EXPECT_EQ(sharded.gathered, 2 * count);
}

TEST(TensorParallel, SplitsMatricesAndRepeatsNorms) {
  // GPT with t: 12 h^2 / t, biases of QKV and MLP 7h / t, and h + h + 4h of the others and the norms.
  const Transformer model = example("gpt3-175b.json");
  const std::int64_t h = 12288;
  EXPECT_EQ(layer_parameters_per_device(model, 8), 12 * h * h / 8 + 7 * h / 8 + 6 * h);
  // Four key/value heads on eight devices: each has one, and every head is on two.
  const Transformer qwen = example("qwen2-7b/config.json");
  EXPECT_GT(8 * layer_parameters_per_device(qwen, 4), 8 * layer_parameters(qwen) / 4);
}

TEST(Transfers, AreSplitByScatterGatherOrSequenceParallelism) {
  const Transformer model = example("llama3-8b/config.json");
  const std::int64_t whole = 2 * 2 * 2048 * std::int64_t{4096};
  Training training = training_of(8, false, true);
  EXPECT_EQ(one_layer(model, training).transfer_forward, whole / 8);
  training.scatter_gather = false;
  EXPECT_EQ(one_layer(model, training).transfer_backward, whole);
  training.sequence_parallel = true;
  EXPECT_EQ(one_layer(model, training).transfer_backward, whole / 8);
}

std::vector<int> layers_of(const std::vector<StageContents>& stages) {
  std::vector<int> out;
  for (const StageContents& stage : stages) out.push_back(stage.layers);
  return out;
}

TEST(SplitLayers, GivesOuterStagesFewerLayers) {
  Transformer model = example("gpt2/config.json");
  const auto split = [&](int layers, int stages, int first = 0, int last = 0) {
    model.layers = layers;
    return layers_of(split_layers(model, stages, {}, first, last));
  };
  EXPECT_EQ(split(12, 4), (std::vector<int>{3, 3, 3, 3}));
  EXPECT_EQ(split(14, 4), (std::vector<int>{3, 4, 4, 3}));
  EXPECT_EQ(split(13, 4), (std::vector<int>{3, 4, 3, 3}));
  EXPECT_EQ(split(15, 4), (std::vector<int>{4, 4, 4, 3}));
  EXPECT_EQ(split(22, 8), (std::vector<int>{2, 3, 3, 3, 3, 3, 3, 2}));
  EXPECT_EQ(split(12, 4, 2, 2), (std::vector<int>{2, 4, 4, 2}));
  EXPECT_EQ(split(12, 4, 0, 1), (std::vector<int>{4, 4, 3, 1}));
  EXPECT_EQ(split(12, 1), (std::vector<int>{12}));
}

TEST(SplitLayers, PutsEmbeddingAndHeadAtTheEnds) {
  const Transformer model = example("gpt2/config.json");
  const std::vector<StageContents> two = split_layers(model, 2, {}, 0, 0);
  EXPECT_EQ(two[0], (StageContents{.layers = 6, .embedding = true}));
  EXPECT_EQ(two[1], (StageContents{.layers = 6, .head = true, .tied_copy = true}));
  EXPECT_EQ(split_layers(model, 1, {}, 0, 0)[0], (StageContents{.layers = 12, .embedding = true, .head = true}));
  EXPECT_FALSE(split_layers(example("llama3-8b/config.json"), 2, {}, 0, 0)[1].tied_copy);
}

TEST(SplitLayers, RejectsNumbersThatDoNotAddUp) {
  const Transformer model = example("gpt2/config.json");
  const auto error = [&](int stages, std::vector<int> layers, int first = 0, int last = 0) {
    return error_of([&] { split_layers(model, stages, layers, first, last); });
  };
  EXPECT_EQ(error(13, {}), "13 stages are more than the 12 layers of gpt2");
  EXPECT_EQ(error(2, {6, 5}), "the stages' layers add up to 11, but gpt2 has 12");
  EXPECT_EQ(error(3, {6, 6}), "layers are specified for 2 stages, but there are 3");
  EXPECT_EQ(error(2, {13, -1}), "a stage cannot have -1 layers");
  EXPECT_EQ(error(4, {}, 6, 5),
            "first stage 6, last stage 5 layers: the 2 other stages have 1 of the 12 layers of gpt2");
  EXPECT_EQ(error(2, {6, 6}, 6),
            "layers of the first stage are specified twice: in the list of all stages and separately");
}

// Found by the fuzzer: rows times widths overflowed.
TEST(Activations, MoreThanFitIn64BitsAreRejected) {
  const Transformer model = example("gpt3-175b.json");
  Training training = training_of(1, false, true);
  training.sequence_length = 2048;
  const TransformerFootprint footprint(model, training, {{.layers = 96, .embedding = true, .head = true}});
  // 34 b s h of every layer (above) for 2^30 sequences: 34 x 2^30 x 2048 x 12288 x 96 = 8.8e19 bytes.
  EXPECT_EQ(
      error_of([&] {
        footprint.slice(0, {1 << 30, {2048}}, 0);
      }),
      "gpt3-175b: a slice of 2.05e+03 tokens in 1073741824 sequences: more bytes of activations than can be counted");
  EXPECT_EQ(error_of([&] { footprint.slice(0, {1 << 20, {2048}}, 0); }), "no error");
  // The scores of a long context, where they are stored: 5 a n (c + n) = 5 x 96 x 2^30 x 2^31 = 1.1e21 bytes per layer.
  const TransformerFootprint scored(model, training_of(1, false, false), {{.layers = 96}});
  EXPECT_NE(error_of([&] { scored.slice(0, {1, {1LL << 30, 1LL << 30}}, 1); }), "no error");
  EXPECT_EQ(error_of([&] { footprint.slice(0, {1, {1LL << 30, 1LL << 30}}, 1); }), "no error");
}

TEST(CheckTraining, NamesSizesThatDoNotDivide) {
  const Transformer model = example("llama3-8b/config.json");
  const auto error = [&](const auto& change) {
    Training training = training_of(1, false, true);
    change(training);
    return error_of([&] { check_training(model, training); });
  };
  EXPECT_EQ(error([](Training&) {}), "no error");
  EXPECT_EQ(error([](Training& t) { t.tp = 3; }),
            "/parallelism/tp: llama3-8b: attention heads (32) must be a multiple of the tensor-parallel size (3)");
  EXPECT_EQ(error([](Training& t) { t.tp = 16; }), "no error");  // eight key/value heads, each twice
  EXPECT_EQ(error([](Training& t) { t.gradient_bytes = 3; }),
            "/parallelism/gradient_bytes: gradients take 2 or 4 bytes, got 3");
  EXPECT_EQ(error([](Training& t) { t.sequence_length = 0; }), "sequence length must be at least 1, got 0");
}

TEST(Activations, OfSomeRecomputedLayersAreThoseOfTheOthersAndTheirInputs) {
  const Transformer model = example("gpt3-175b.json");
  const std::int64_t s = 2048, b = 2, h = 12288, a = 96;
  for (const int recomputed : {1, 3, 4, 9}) {
    Training training = training_of(1, false, false, Recompute::full);
    training.recompute_layers = recomputed;
    const SliceBytes bytes = TransformerFootprint(model, training, {{.layers = 4}}).slice(0, {2, {2048}}, 0);
    const std::int64_t inputs = std::min(recomputed, 4);
    // Inputs of the first: 2 s b h each. The others as eq. 1 has them.
    EXPECT_EQ(kept(bytes), inputs * 2 * s * b * h + (4 - inputs) * (s * b * h * 34 + 5 * a * s * s * b));
  }
}

TEST(Memory, OfTransformerEngineAndFusedLossAddsItsTensors) {
  const Transformer model = example("llama3-8b/config.json");
  Training training = training_of(1, false, true);
  const std::vector<StageContents> stages = {{.layers = 16, .embedding = true}, {.layers = 16, .head = true}};
  const TransformerFootprint plain(model, training, stages);
  training.transformer_engine = true;
  training.cross_entropy = Training::CrossEntropy::te;
  const TransformerFootprint engine(model, training, stages);
  EXPECT_EQ(plain.stage(0).scratch, 0);
  EXPECT_EQ(engine.stage(0).scratch, 2 * layer_matrix_elements(model));
  EXPECT_EQ(engine.stage(1).scratch, 2 * (layer_matrix_elements(model) + padded_vocab(model, 1) * model.hidden));
  const MicrobatchShape shape{2, {2048}};
  const std::int64_t logits = std::int64_t{2} * 2048 * padded_vocab(model, 1);
  EXPECT_EQ(kept(plain.slice(1, shape, 0)) - kept(engine.slice(1, shape, 0)), 2 * logits);  // 32 bit against 16
  EXPECT_LT(engine.slice(1, shape, 0).backward_workspace, plain.slice(1, shape, 0).backward_workspace);
}

// Weights: both narrow layouts besides or instead of the 16-bit matrices. Activations: the inputs of the four GEMMs.
TEST(Memory, OfNarrowFormats) {
  const Transformer model = example("llama3-8b/config.json");
  Training training = training_of(1, false, true);
  training.distributed_optimizer = true;
  training.dp = 4;
  const std::vector<StageContents> stages = {{.layers = 16, .embedding = true}, {.layers = 16, .head = true}};
  const MicrobatchShape shape{2, {2048}};
  const StageBytes plain = TransformerFootprint(model, training, stages).stage(0);
  const SliceBytes slice = TransformerFootprint(model, training, stages).slice(0, shape, 0);
  const std::int64_t matrices = 16 * layer_matrix_elements(model);
  const std::int64_t rows = 2 * 2048;
  const std::int64_t inputs = 16 * rows * (2 * model.hidden + model.value_width() + model.ffn_hidden);
  const auto narrow = [&](GemmPrecision precision, bool parameters) {
    Training other = training;
    other.precision = precision;
    other.narrow_parameters = parameters;
    return TransformerFootprint(model, other, stages);
  };
  const TransformerFootprint fp8 = narrow(GemmPrecision::fp8, false);
  EXPECT_EQ(fp8.stage(0).weights, plain.weights + 2 * matrices);
  EXPECT_EQ(fp8.stage(0).gathered, plain.gathered);
  EXPECT_EQ(fp8.stage(0).optimizer, plain.optimizer);
  EXPECT_EQ(slice.activations_to_weight_gradient - fp8.slice(0, shape, 0).activations_to_weight_gradient, inputs);
  // The attention's output is kept for attention's backward too.
  EXPECT_EQ(fp8.slice(0, shape, 0).activations_to_input_gradient - slice.activations_to_input_gradient,
            16 * 2 * rows * model.value_width());
  const TransformerFootprint gathered = narrow(GemmPrecision::fp8_current, true);
  EXPECT_EQ(gathered.stage(0).weights, plain.weights);
  EXPECT_EQ(gathered.stage(0).gathered, plain.gathered - matrices);
  // Block scales: a byte for 32 elements.
  EXPECT_EQ(narrow(GemmPrecision::mxfp8, true).stage(0).weights, plain.weights + matrices / 16);
  EXPECT_EQ(narrow(GemmPrecision::mxfp8, true).stage(0).gathered, plain.gathered);
  training.any_layout = true;  // one layout, unless scales depend on it
  EXPECT_EQ(narrow(GemmPrecision::fp8, false).stage(0).weights, plain.weights + matrices);
  EXPECT_EQ(narrow(GemmPrecision::mxfp8, true).stage(0).weights, plain.weights + matrices / 16);
}

// The named tensors are what the sums count: every combination of families of layers, recomputation and slices.
TEST(Activations, TensorsAddUpToTheirFields) {
  for (const char* name : {"gpt3-175b.json", "llama3-8b/config.json", "deepseek-v3/config.json"}) {
    const Transformer model = example(name);
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      SCOPED_TRACE(name);
      const bool latent = model.has_latent_attention();
      const TransformerFootprint footprint(model, training_of(8, true, latent, recompute),
                                           split_layers(model, 2, {}, 0, 0));
      for (const MicrobatchShape& shape : {MicrobatchShape{2, {2048}}, MicrobatchShape{1, {1024, 1024}}}) {
        const SliceBytes bytes = footprint.slice(1, shape, shape.num_slices() - 1);
        SliceBytes sum;
        for (const SliceTensor& tensor : footprint.tensors(1, shape, shape.num_slices() - 1)) {
          EXPECT_FALSE(tensor.name.empty() || tensor.formula.empty());
          sum.*tensor.field += tensor.count * tensor.bytes;
        }
        EXPECT_EQ(sum.activations_to_input_gradient, bytes.activations_to_input_gradient);
        EXPECT_EQ(sum.activations_to_weight_gradient, bytes.activations_to_weight_gradient);
        EXPECT_EQ(sum.backward_workspace, bytes.backward_workspace);
      }
    }
  }
}

// What each module of Megatron-LM's recompute-modules no longer stores, per layer.
TEST(Activations, OfRecomputedModulesAreNotStored) {
  const MicrobatchShape shape{2, {2048}};
  const std::int64_t rows = 2 * 2048;
  const auto saved = [&](const Transformer& model, RecomputeModules modules, LayerKind kind) {
    Training training = training_of(1, false, true);
    const StageContents layer{.layers = 1, .expert_layers = kind == LayerKind::experts ? 1 : 0};
    const SliceBytes all = TransformerFootprint(model, training, {layer}).slice(0, shape, 0);
    training.recompute = Recompute::selective;
    training.recompute_modules = modules;
    const SliceBytes some = TransformerFootprint(model, training, {layer}).slice(0, shape, 0);
    // The backward pass of a layer has them again.
    EXPECT_EQ(some.backward_workspace - all.backward_workspace, kept(all) - kept(some));
    return kept(all) - kept(some);
  };
  const Transformer llama = example("llama3-8b/config.json");
  const std::int64_t norms = 2 * 2 * rows * llama.hidden;
  const std::int64_t mlp = 2 * 3 * rows * llama.ffn_hidden;
  EXPECT_EQ(saved(llama, RecomputeModule::norm, LayerKind::dense), norms);
  EXPECT_EQ(saved(llama, RecomputeModule::mlp, LayerKind::dense), mlp);
  EXPECT_EQ(saved(llama, RecomputeModules(RecomputeModule::norm) | RecomputeModule::mlp, LayerKind::dense),
            norms + mlp);
  EXPECT_EQ(saved(llama, RecomputeModule::activation, LayerKind::dense), 0);
  const Transformer deepseek = example("deepseek-v3/config.json");
  const Experts& experts = deepseek.experts;
  EXPECT_EQ(saved(deepseek, RecomputeModule::activation, LayerKind::experts),
            2 * rows * experts.per_token * experts.ffn_hidden);
  EXPECT_EQ(saved(deepseek, RecomputeModule::shared_experts, LayerKind::experts),
            2 * 3 * rows * experts.shared_ffn_hidden);
  const LatentAttention& latent = deepseek.latent;
  EXPECT_EQ(
      saved(deepseek, RecomputeModule::up_projection, LayerKind::experts),
      2 * rows * (latent.query_rank + latent.key_value_rank + deepseek.query_width() + deepseek.key_value_width()));
  EXPECT_EQ(saved(deepseek, RecomputeModule::experts, LayerKind::experts),
            2 * rows * experts.per_token * (deepseek.hidden + 3 * experts.ffn_hidden) +
                2 * 3 * rows * experts.shared_ffn_hidden + 19 * rows * experts.count);
}

// Megatron-LM's compiled loss keeps the 32-bit logits besides the softmax until the end of the forward pass, and the
// gradient replaces the softmax.
TEST(Activations, OfTheLoss) {
  const Transformer model = example("llama3-8b/config.json");
  Training training = training_of(1, false, true);
  const std::int64_t logits = std::int64_t{2} * 2048 * padded_vocab(model, 1);
  const auto head = [&](Training::CrossEntropy loss) {
    training.cross_entropy = loss;
    return TransformerFootprint(model, training, {{.head = true}}).slice(0, {2, {2048}}, 0);
  };
  const SliceBytes separate = head(Training::CrossEntropy::separate);
  EXPECT_EQ(separate.forward_workspace, 2 * logits);
  EXPECT_EQ(separate.backward_workspace, 2 * logits);
  const SliceBytes native = head(Training::CrossEntropy::native);
  EXPECT_EQ(native.forward_workspace, 6 * logits);
  EXPECT_EQ(native.activations_to_input_gradient, separate.activations_to_input_gradient);
  EXPECT_EQ(head(Training::CrossEntropy::te).forward_workspace, 0);
  const SliceBytes plain = head(Training::CrossEntropy::plain);
  EXPECT_EQ(plain.forward_workspace, 6 * logits);
  EXPECT_EQ(plain.backward_workspace, 8 * logits);
  EXPECT_EQ(plain.activations_to_input_gradient, separate.activations_to_input_gradient);
}

// An activation that is not fused with the gate stores its output too.
TEST(Activations, OfAGateThatIsNotFused) {
  const std::int64_t rows = 2 * 2048;
  for (const char* name : {"llama3-8b/config.json", "mixtral-8x7b/config.json"}) {
    const Transformer model = example(name);
    Training training = training_of(1, false, true);
    const StageContents layer{.layers = 1, .expert_layers = model.has_experts() ? 1 : 0};
    const auto of = [&](bool fused) {
      training.fused_activation = fused;
      return kept(TransformerFootprint(model, training, {layer}).slice(0, {2, {2048}}, 0));
    };
    const std::int64_t width = model.has_experts() ? std::int64_t{model.experts.per_token} * model.experts.ffn_hidden
                                                   : std::int64_t{model.ffn_hidden};
    EXPECT_EQ(of(false) - of(true), 2 * rows * width) << name;
  }
}

TEST(Memory, OfOtherOptimizerStatesAndGradients) {
  const Transformer model = example("llama3-8b/config.json");
  Training training = training_of(1, false, true);
  const std::vector<StageContents> all = {{.layers = 32, .embedding = true, .head = true}};
  const std::int64_t count = stage_parameters_per_device(model, 1, all[0]);
  training.optimizer_bytes = 8;
  training.gradient_copy = true;
  const StageBytes bytes = TransformerFootprint(model, training, all).stage(0);
  EXPECT_EQ(bytes.optimizer, 8 * count);
  EXPECT_EQ(bytes.gradients, 6 * count);
  EXPECT_EQ(bytes.reduced, 4 * count);
  training.distributed_optimizer = true;
  training.dp = 4;
  EXPECT_EQ(TransformerFootprint(model, training, all).stage(0).optimizer, 2 * count);
}

// Half of 12 bytes of states per parameter, over four replicas, and of 4 of gradients, are on the host.
TEST(Memory, OfOptimizerStatesOnTheHost) {
  const Transformer model = example("llama3-8b/config.json");
  Training training = training_of(1, false, true);
  training.dp = 4;
  training.distributed_optimizer = true;
  const StageContents all{.layers = 32, .embedding = true, .head = true};
  const std::int64_t count = stage_parameters_per_device(model, 1, all);
  const StageBytes before = TransformerFootprint(model, training, {all}).stage(0);
  EXPECT_EQ(offloaded_bytes(model, training, all), 0);
  training.optimizer_offload = 0.5;
  const StageBytes half = TransformerFootprint(model, training, {all}).stage(0);
  EXPECT_EQ(half.optimizer, 12 * count / 4 / 2);
  EXPECT_EQ(std::pair(half.weights, half.gradients), std::pair(before.weights, before.gradients));
  EXPECT_EQ(offloaded_bytes(model, training, all), 16 * count / 4 / 2);
  // FSDP keeps nothing but what is gathered on the GPU.
  training.optimizer_offload = 1;
  training.zero = 3;
  const StageBytes none = TransformerFootprint(model, training, {all}).stage(0);
  EXPECT_EQ(std::tuple(none.weights, none.gradients, none.optimizer),
            std::tuple(std::int64_t{0}, std::int64_t{0}, std::int64_t{0}));
  EXPECT_EQ(offloaded_bytes(model, training, all), 16 * count / 4);
}

TEST(Memory, OfTheHeadWithDeferredWeightGradients) {
  const Transformer model = example("llama3-8b/config.json");
  Training training = training_of(1, false, true);
  const std::vector<StageContents> stages = {{.layers = 16, .embedding = true}, {.layers = 16, .head = true}};
  const TransformerFootprint plain(model, training, stages, 1000);
  training.deferred_head_gradients = 3;
  const TransformerFootprint deferred(model, training, stages, 1000);
  EXPECT_EQ(plain.stage(0).scratch, 1000);
  EXPECT_EQ(deferred.stage(0).scratch, 1000);
  EXPECT_EQ(deferred.stage(1).scratch - plain.stage(1).scratch,
            3 * 2 * std::int64_t{2} * 2048 * (padded_vocab(model, 1) + model.hidden));
}

// Bytes of Llama 3 8B on 8 replicas by stage of ZeRO, without a pipeline: P parameters, p of a layer, w of the
// embedding and nearly of the head.
TEST(Memory, OfTheStagesOfZero) {
  const Transformer model = example("llama3-8b/config.json");
  const StageContents all{.layers = 32, .embedding = true, .head = true};
  Training training = training_of(1, false, true);
  training.dp = 8;
  const std::int64_t count = stage_parameters_per_device(model, 1, all);
  const std::int64_t head = stage_parameters_per_device(model, 1, {.head = true});
  const std::int64_t layer = layer_parameters_per_device(model, 1);
  const auto bytes = [&](int zero, int pp, int shard = 0, std::optional<bool> reshard = std::nullopt) {
    Training other = training;
    other.distributed_optimizer = zero > 0;
    other.zero = std::max(1, zero);
    other.pp = pp;
    other.dp_shard = shard;
    other.reshard_after_forward = reshard;
    return TransformerFootprint(model, other, {all}).stage(0);
  };
  const StageBytes one = bytes(1, 1);
  EXPECT_EQ(std::tuple(one.weights, one.gradients, one.optimizer), std::tuple(2 * count, 4 * count, 12 * count / 8));
  // The gradients of the largest unit in 32 bits are besides the shards.
  const StageBytes two = bytes(2, 1);
  EXPECT_EQ(std::tuple(two.weights, two.gradients, two.optimizer), std::tuple(2 * count, count / 2, 12 * count / 8));
  EXPECT_EQ(two.scratch, 4 * head);
  // 4 + 4 + 8 bytes per parameter. The head in the backward: its parameters and those of the last layer in 16 bits, its
  // gradients in 16 and in 32 bits.
  const StageBytes three = bytes(3, 1);
  EXPECT_EQ(std::tuple(three.weights, three.gradients, three.optimizer), std::tuple(count / 2, count / 2, count));
  EXPECT_EQ(three.scratch, 2 * (head + layer) + 2 * head + 4 * head);
  // Copies on two groups of four: shards are twice as large.
  EXPECT_EQ(bytes(3, 1, 4).weights, count);
  EXPECT_EQ(bytes(3, 1, 4).optimizer, 2 * count);
  // Without resharding, as by default with a pipeline: the whole stage in 16 bits. Its gradients are whole from the
  // first backward until they are reduced.
  EXPECT_EQ(bytes(3, 1, 0, false).weights, count / 2 + 2 * count);
  EXPECT_EQ(bytes(3, 2).weights, count / 2 + 2 * count);
  EXPECT_EQ(bytes(3, 2).gradients, count / 2);
  EXPECT_EQ(bytes(3, 2).accumulated_gradients, 4 * count);
  EXPECT_EQ(bytes(3, 2, 0, true).weights, count / 2);
  EXPECT_EQ(bytes(2, 2).accumulated_gradients, 4 * count);
  EXPECT_EQ(bytes(1, 2).accumulated_gradients, 0);
  EXPECT_EQ(bytes(2, 1).accumulated_gradients, 0);
  training.distributed_optimizer = true;
  training.zero = 2;
  training.pp = 2;
  const std::vector<StageContents> six = split_layers(model, 6, {}, 0, 0);
  const std::int64_t inner = stage_parameters_per_device(model, 1, six[2]);
  const StageBytes runs = TransformerFootprint(model, training, six).stage(2);
  EXPECT_EQ(std::tuple(runs.gradients, runs.scratch, runs.reduced), std::tuple(inner / 2, 0, 4 * inner));
  EXPECT_EQ(runs.accumulated_gradients, 4 * inner);
}

// What PyTorch's stages keep until the end of the batch, per microbatch: 16-bit logits, and buffers of what they
// receive, one of which is the input of the first layer.
TEST(Memory, OfPyTorchsPipelineStages) {
  const Transformer model = example("llama3-8b/config.json");
  Training training = training_of(2, true, true);
  training.pp = 2;
  training.cross_entropy = Training::CrossEntropy::plain;
  const std::vector<StageContents> stages = {{.layers = 16, .embedding = true}, {.layers = 16, .head = true}};
  const MicrobatchShape shape{1, {2048}};
  const std::int64_t hidden = std::int64_t{2} * 2048 * model.hidden / 2;
  const std::int64_t logits = std::int64_t{2} * 2048 * (padded_vocab(model, 2) / 2);
  const auto of = [&](int stage) { return TransformerFootprint(model, training, stages).slice(stage, shape, 0); };
  const SliceBytes first = of(0);
  const SliceBytes last = of(1);
  EXPECT_EQ(std::pair(first.kept, last.kept), std::pair(std::int64_t{0}, std::int64_t{0}));
  training.torch_pipelining = true;
  EXPECT_EQ(of(0).kept, hidden);
  EXPECT_EQ(of(0).activations_to_input_gradient, first.activations_to_input_gradient);
  EXPECT_EQ(of(1).kept, hidden + logits);
  EXPECT_EQ(last.activations_to_input_gradient - of(1).activations_to_input_gradient, hidden);
  EXPECT_EQ(last.forward_workspace - of(1).forward_workspace, logits);
  training.recompute = Training::Recompute::full;
  EXPECT_EQ(of(1).kept, hidden + logits);
  const TransformerFootprint alone(model, training, {{.layers = 32, .embedding = true, .head = true}});
  EXPECT_EQ(alone.slice(0, shape, 0).kept, 0);
}

// Inputs of column-parallel layers whole instead of split over two ranks: two of each layer and the head's.
TEST(Memory, OfGatheredInputs) {
  const Transformer model = example("llama3-8b/config.json");
  Training training = training_of(2, true, true);
  const auto of = [&](bool gathered) {
    training.gathered_inputs = gathered;
    return TransformerFootprint(model, training, {{.layers = 3, .head = true}}).slice(0, {1, {2048}}, 0);
  };
  const std::int64_t input = std::int64_t{2} * 2048 * model.hidden;
  EXPECT_EQ(of(true).activations_to_weight_gradient - of(false).activations_to_weight_gradient, 7 * input / 2);
  EXPECT_EQ(of(true).activations_to_input_gradient, of(false).activations_to_input_gradient);
  training.sequence_parallel = false;
  EXPECT_EQ(of(true).activations_to_weight_gradient, of(false).activations_to_weight_gradient);
}

}  // namespace
}  // namespace sluice::test
