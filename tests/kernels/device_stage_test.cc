// Compares stages on devices with those of the CPU in double precision, with equal 16-bit weights.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/device_kernels.h"
#include "model/errors.h"
#include "tests/kernels/device_training_run.h"
#include "tests/kernels/stage_results.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/test_device.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

bool has_device() { return make_test_device() != nullptr; }
bool has(Precision precision) { return precision == Precision::float16 || make_test_device()->has_bfloat16(); }

class DeviceStages : public ::testing::TestWithParam<Precision> {
 protected:
  void SetUp() override {
    if (!has_device() || !has(GetParam())) GTEST_SKIP() << "SKIPPED: no GPU, or none with this precision";
  }
  // Both models, with weights rounded to the precision.
  struct Trained {
    TrainingCase training;
    Matrices weights;
    TrainingResult reference() const {
      TrainingCase on_cpu = training;
      on_cpu.precision = Precision::float64;
      return run(on_cpu, weights);
    }
    TrainingResult result() const { return run_on_devices(training, weights); }
  };
  using Change = std::function<void(Transformer&)>;
  static std::vector<Trained> both_models(const Change& change = [](Transformer&) {}) {
    return trained_models({small_gpt(), small_llama()}, change);
  }
  static std::vector<Trained> trained_models(std::vector<Transformer> models, const Change& change) {
    // With sanitizers, one model per precision.
    const bool small = test::small_scope();
    std::vector<Trained> out;
    for (Transformer& model : models) {
      if (small && model.gated == (GetParam() == Precision::float16)) continue;
      change(model);
      out.push_back({.training = {.model = model,
                                  .stages = {whole(model)},
                                  .precision = GetParam(),
                                  .slices = {13},
                                  .sequences = 2,
                                  .loss_scale = 0.25},
                     .weights = rounded(GetParam(), tame_matrices(model))});
    }
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Precisions, DeviceStages, ::testing::Values(Precision::float16, Precision::bfloat16),
                         [](const auto& precision) { return precision.param == Precision::float16 ? "fp16" : "bf16"; });

TEST_P(DeviceStages, GradientsEqualCpu) {
  for (Trained of : both_models()) {
    const TrainingResult reference = of.reference();
    for (const std::vector<std::int64_t>& cut : {std::vector<std::int64_t>{13}, {5, 8}, {9, 3, 1}}) {
      for (const bool recompute : {false, true}) {
        of.training.slices = cut;
        of.training.recompute = recompute;
        expect_close(of.result(), reference, allowed_of_stages(GetParam()));
      }
    }
  }
}

// Rows and heads of whole chunks of 8, as in models that fit vector loads.
TEST_P(DeviceStages, GradientsEqualCpuWithWholeChunks) {
  for (Trained of : both_models([](Transformer& model) {
         model.hidden = 64;
         model.head_dim = 16;
         model.ffn_hidden = 96;
       })) {
    const TrainingResult reference = of.reference();
    of.training.slices = {4, 9};
    expect_close(of.result(), reference, allowed_of_stages(GetParam()));
  }
}

// Heads of 64.
TEST_P(DeviceStages, GradientsEqualCpuWithHeadsOf64) {
  for (Trained of : both_models([](Transformer& model) {
         model.layers = 1;
         model.heads = 2;
         model.kv_heads = model.gated ? 1 : 2;
         model.hidden = 64;
         model.head_dim = 64;
       })) {
    of.training.sequences = 1;
    const TrainingResult reference = of.reference();
    // Without slices the gradients of keys and values are written beside those of queries.
    for (const std::vector<std::int64_t>& cut : {std::vector<std::int64_t>{6, 7}, {13}}) {
      for (const bool recompute : {false, true}) {
        of.training.slices = cut;
        of.training.recompute = recompute;
        expect_close(of.result(), reference, allowed_of_stages(GetParam()));
      }
    }
  }
}

// I and W equal B, except for the order in which rows of the same token are added to the word embedding.
TEST_P(DeviceStages, SplitBackwardEqualsWholeBackward) {
  for (Trained of : both_models()) {
    of.training.slices = {5, 8};
    of.training.microbatches = 2;
    for (const bool recompute : {false, true}) {
      of.training.recompute = recompute;
      of.training.backward = TrainingCase::Backward::whole;
      const TrainingResult reference = of.result();
      for (const TrainingCase::Backward backward :
           {TrainingCase::Backward::split, TrainingCase::Backward::late, TrainingCase::Backward::late_reversed}) {
        of.training.backward = backward;
        expect_close(of.result(), reference, 1e-6);
      }
    }
  }
}

TEST_P(DeviceStages, RecomputationDoesNotChangeGradients) {
  for (Trained of : both_models()) {
    for (const std::vector<std::int64_t>& cut : {std::vector<std::int64_t>{13}, {5, 8}}) {
      of.training.slices = cut;
      const TrainingResult reference = of.result();
      of.training.recompute = true;
      expect_close(of.result(), reference, 1e-6);
      of.training.recompute = false;
    }
  }
}

TEST_P(DeviceStages, GradientsDoNotDependOnStageBoundaries) {
  for (Trained of : both_models()) {
    of.training.slices = {6, 7};
    of.training.sequences = 1;
    const TrainingResult reference = of.reference();
    for (const std::vector<int>& layers : {std::vector<int>{1, 1}, {2, 0}, {0, 2}, {0, 1, 1, 0}}) {
      of.training.stages.clear();
      for (const int count : layers) of.training.stages.push_back({.layers = count});
      of.training.stages.front().embedding = true;
      of.training.stages.back().head = true;
      of.training.stages.back().tied_copy = of.training.model.tied_embeddings;
      for (const TrainingCase::Backward backward : {TrainingCase::Backward::whole, TrainingCase::Backward::late}) {
        of.training.backward = backward;
        for (const bool shares : {false, true}) {
          of.training.head_shares_embedding = shares;
          TrainingResult result = of.result();
          // The gradients of the tied copy and the original are not added yet, so that the norm differs.
          if (of.training.model.tied_embeddings && !shares) result.squared_norm = reference.squared_norm;
          expect_close(result, reference, allowed_of_stages(GetParam()));
        }
      }
    }
  }
}

// The vocabulary of 300 is padded: to 384 columns on one rank, to 512 on two and four, where the last rank has only
// padding.
TEST_P(DeviceStages, TensorParallelGradientsEqualCpu) {
  for (Trained of : both_models([](Transformer& model) {
         model.kv_heads = 4;
         if (model.gated) model.heads = 8;
         model.vocab = 300;
       })) {
    of.training.slices = {6, 7};
    of.training.sequences = 1;
    const TrainingResult reference = of.reference();
    for (const int t : {1, 2, 4}) {
      of.training.tensor_parallel = t;
      for (const bool recompute : {false, true}) {
        of.training.recompute = recompute;
        of.training.backward = recompute ? TrainingCase::Backward::split : TrainingCase::Backward::whole;
        expect_close(of.result(), reference, allowed_of_stages(GetParam()));
      }
    }
  }
}

// Models with experts. With all of them chosen, no rounding error changes a choice.
std::vector<Transformer> expert_models(int per_token) {
  std::vector<Transformer> out{small_expert_gpt(), small_expert_llama()};
  for (Transformer& model : out) model.experts.per_token = per_token;
  return out;
}

class DeviceExperts : public DeviceStages {
 protected:
  static std::vector<Trained> trained(
      int per_token, const Change& change = [](Transformer&) {}) {
    return trained_models(expert_models(per_token), change);
  }
};
INSTANTIATE_TEST_SUITE_P(Precisions, DeviceExperts, ::testing::Values(Precision::float16, Precision::bfloat16),
                         [](const auto& precision) { return precision.param == Precision::float16 ? "fp16" : "bf16"; });

TEST_P(DeviceExperts, GradientsEqualCpu) {
  for (const int per_token : {1, 2, 3, 4}) {
    for (Trained of : trained(per_token)) {
      SCOPED_TRACE(testing::Message() << of.training.model.name << ", " << per_token << " per token");
      const TrainingResult reference = of.reference();
      for (const std::vector<std::int64_t>& cut : {std::vector<std::int64_t>{13}, {9, 3, 1}}) {
        for (const bool recompute : {false, true}) {
          of.training.slices = cut;
          of.training.recompute = recompute;
          expect_close(of.result(), reference, allowed_of_stages(GetParam()));
        }
      }
    }
  }
}

// Rows that are aligned for vector accesses, and rows that are not.
TEST_P(DeviceExperts, GradientsEqualCpuForOtherSizes) {
  for (const int hidden : {64, 21}) {
    for (Trained of : trained(4, [hidden](Transformer& model) {
           model.hidden = hidden;
           model.experts.count = model.experts.per_token = 40;
           model.experts.ffn_hidden = 16;
         })) {
      of.training.sequences = 1;
      of.training.microbatches = 2;
      expect_close(of.result(), of.reference(), allowed_of_stages(GetParam()));
    }
  }
}

TEST_P(DeviceExperts, SplitBackwardAndPartsEqualWholeBackward) {
  for (Trained of : trained(2)) {
    of.training.slices = {5, 8};
    of.training.microbatches = 2;
    const TrainingResult reference = of.result();
    for (const bool in_parts : {false, true}) {
      of.training.in_parts = in_parts;
      for (const TrainingCase::Backward backward :
           {TrainingCase::Backward::whole, TrainingCase::Backward::split, TrainingCase::Backward::late_reversed}) {
        of.training.backward = backward;
        expect_close(of.result(), reference, 1e-6);
      }
    }
    of.training.in_parts = false;
    of.training.backward = TrainingCase::Backward::split;
    of.training.recompute = true;
    expect_close(of.result(), reference, 1e-6);
  }
}

TEST_P(DeviceExperts, ExpertParallelGradientsEqualCpu) {
  for (Trained of : trained(2, [](Transformer& model) { model.kv_heads = 4; })) {
    of.training.sequences = 1;  // fewer tokens, none of which changes its experts by rounding
    const TrainingResult reference = of.reference();
    for (const int t : {2, 4}) {
      for (const int ep : {1, t}) {
        SCOPED_TRACE(testing::Message() << of.training.model.name << ", t " << t << ", ep " << ep);
        of.training.tensor_parallel = t;
        of.training.expert_parallel = ep;
        of.training.recompute = t == 4;
        of.training.in_parts = t == 2;
        TrainingResult result = of.result();
        // The ranks' parts of the gradients of replicated experts are not added yet, so that the norm differs.
        if (ep == 1) result.squared_norm = reference.squared_norm;
        expect_close(result, reference, allowed_of_stages(GetParam()));
      }
    }
  }
}

// All logits are equal without a router: experts 0 and 1 are chosen for all tokens, on one of the ranks.
TEST_P(DeviceExperts, TiesAreBrokenByLowerIndex) {
  for (Trained of : trained(2)) {
    std::vector<double>& router = of.weights.at("layers.1.mlp.router.weight");
    std::fill(router.begin(), router.end(), 0.0);
    const TrainingResult reference = of.reference();
    for (const int t : {1, 2}) {
      of.training.tensor_parallel = t;
      of.training.expert_parallel = t;
      const TrainingResult result = of.result();
      EXPECT_GT(norm(result.gradients.at("layers.1.mlp.experts.1.down.weight")), 1e-3);
      EXPECT_EQ(norm(result.gradients.at("layers.1.mlp.experts.2.down.weight")), 0);
      expect_close(result, reference, allowed_of_stages(GetParam()));
    }
  }
}

// A loss scale that overflows fp16 makes gradients, and so their norm, not finite. bf16 does not overflow.
TEST_P(DeviceStages, OverflowMakesTheNormNotFinite) {
  for (Trained of : both_models()) {
    of.training.loss_scale = 1e6;
    EXPECT_EQ(std::isfinite(of.result().squared_norm), GetParam() == Precision::bfloat16);
  }
}

StageSpec spec_of(const Transformer& model) { return {.model = model, .contents = whole(model)}; }

TEST(DeviceMemoryPlan, EqualsTheDocumentedSizes) {
  Transformer model = small_gpt();
  model.hidden = 32;
  model.head_dim = 8;
  model.ffn_hidden = 64;
  const SliceShape shape{.sequences = 2, .tokens = 8};
  constexpr std::int64_t n = 16, h = 32, a = 4, f = 64, v = 128;  // 50 tokens pad to 128
  constexpr std::int64_t layers = 2;
  StageSpec spec{.model = model, .contents = {.layers = 2, .head = true, .tied_copy = true}, .sliced = true};
  const auto made = [&] { return device_kernels()->make_stage(spec, Precision::bfloat16); };
  // As on the CPU, with 2 bytes per element, but 4 for the two statistics of each norm and the log sum of each head. No
  // size needs padding.
  SliceMemory memory = made()->slice_memory(shape);
  EXPECT_EQ(memory.to_input_gradient, layers * n * (2 * (3 * h + f) + 4 * (4 + a)) + n * (2 * h + 8));
  EXPECT_EQ(memory.to_weight_gradient, 2 * (layers * n * (3 * h + f) + n * (h + v)));
  EXPECT_EQ(memory.output_gradients, 2 * layers * n * (3 * h + h + f + h));
  EXPECT_EQ(memory.keys_values, 2 * layers * n * 2 * h);
  EXPECT_EQ(memory.keys_values_gradient, 2 * memory.keys_values);
  EXPECT_EQ(memory.boundary, 2 * n * h);
  // 2 bytes per weight, float32 gradients, and three float32 optimizer states per weight.
  const StageMemory cpu = make_cpu_stage(spec, Precision::float32)->memory();
  EXPECT_EQ(made()->memory().weights, cpu.weights / 2);
  EXPECT_EQ(made()->memory().gradients, cpu.weights);
  EXPECT_EQ(made()->memory().optimizer_state, 3 * cpu.weights);

  spec.recompute = true;
  memory = made()->slice_memory(shape);
  EXPECT_EQ(memory.to_input_gradient, 2 * layers * n * h + n * (2 * h + 8));
  EXPECT_EQ(memory.to_weight_gradient, 2 * n * (h + v));
  EXPECT_EQ(memory.output_gradients, 2 * layers * n * (5 * h + f + 3 * h + f));
  spec.sliced = false;
  EXPECT_EQ(made()->slice_memory(shape).keys_values, 0);
  EXPECT_EQ(made()->slice_memory(shape).keys_values_gradient, 0);
}

// As Experts.MemoryIsThatOfTheWorstDistribution of the CPU: rows with their probability take h + 8 elements.
TEST(DeviceMemoryPlan, ExpertsHaveBuffersForTheWorstDistribution) {
  Transformer model = small_expert_llama();
  model.hidden = 32;
  model.experts.ffn_hidden = 32;
  model.experts.shared_ffn_hidden = 0;
  model.experts.shared_gate = false;
  const SliceShape shape{.sequences = 2, .tokens = 16};
  const auto made = [&](int ep) {
    const StageSpec spec{.model = model, .contents = {.layers = 1, .expert_layers = 1}, .expert_parallel = ep};
    return device_kernels()->make_stage(spec, Precision::bfloat16);
  };
  const auto memory = [&](int ep) { return made(ep)->slice_memory(shape); };
  constexpr std::int64_t h = 32, f = 32;
  EXPECT_EQ(memory(2).to_input_gradient - memory(1).to_input_gradient, 2 * f * 2 * 64);
  EXPECT_EQ(memory(2).to_weight_gradient - memory(1).to_weight_gradient, 2 * (h + 8 + f) * 64);
  EXPECT_EQ(memory(2).output_gradients - memory(1).output_gradients, 2 * (2 * f + h) * 64);
  EXPECT_EQ(memory(4).to_weight_gradient, memory(2).to_weight_gradient);
  // Numbers of rows sent to and received for 4 experts in total, from all ranks.
  EXPECT_EQ(made(1)->slice_host_bytes(), 2 * 4 * 4);
  EXPECT_EQ(made(2)->slice_host_bytes(), 2 * 4 * 4);
  // Gradients of experts end the gradients.
  const StageMemory plan = made(2)->memory();
  EXPECT_EQ(plan.gradients - plan.dense_gradients, 4 * 2 * 3 * h * f);
}

TEST(DeviceStage, RejectsUnsupportedModels) {
  const auto refusal = [](const std::function<void()>& call) -> std::string {
    return test::error_from([&] { call(); }, "nothing");
  };
  StageSpec spec = spec_of(small_llama());
  EXPECT_EQ(refusal([&] { device_kernels()->make_stage(spec, Precision::float64); }),
            "precision: devices support fp16 and bf16");
  spec.model = small_expert_llama();
  spec.model.mlp_bias = true;
  EXPECT_THAT(refusal([&] { device_kernels()->make_stage(spec, Precision::bfloat16); }),
              HasSubstr("the kernels do not support biases of experts"));
  // Thrown before work is enqueued.
  SliceCall call{.shape = {.tokens = 1, .context = 128}};
  EXPECT_EQ(refusal([&] { device_kernels()->make_stage(spec_of(small_gpt()), Precision::bfloat16)->forward(call); }),
            "small GPT: a slice ends at position 129, but the model has 64 learned positions");
}

}  // namespace
}  // namespace sluice::test
