// Stages with GemmChoice::cublaslt, compared with those of the CPU in double precision. The library is cublasLt on a
// GPU, the fake one in exec_test, and none in kernels_test, where our own kernels take its place.

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/kernels/device_training_run.h"
#include "tests/kernels/stage_results.h"
#include "tests/support/golden.h"
#include "tests/support/test_device.h"

namespace sluice::test {
namespace {

class CublasLtStages : public ::testing::TestWithParam<Precision> {
 protected:
  void SetUp() override {
    const auto device = make_test_device();
    if (device == nullptr || (GetParam() == Precision::bfloat16 && !device->has_bfloat16())) {
      GTEST_SKIP() << "SKIPPED: no GPU, or none with this precision";
    }
  }

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
  // A GPT with and without biases of its MLP, Llama with and without biases of its projections, and a GPT with
  // experts. Rows of whole chunks of 8, also on two tensor ranks.
  static std::vector<Trained> models() {
    Transformer gpt = small_gpt();
    Transformer unbiased = gpt;
    unbiased.mlp_bias = false;
    Transformer biased = small_llama();
    biased.qkv_bias = true;
    std::vector<Trained> out;
    for (Transformer model : {gpt, unbiased, small_llama(), biased, small_expert_gpt()}) {
      if (test::small_scope() && out.size() == 2) break;
      if (!model.has_experts()) {
        model.hidden = 64;
        model.head_dim = 16;
        model.ffn_hidden = 96;
      } else {
        model.experts.per_token = 4;  // all: no rounding error changes a choice
      }
      out.push_back({.training = {.model = model,
                                  .stages = {whole(model)},
                                  .precision = GetParam(),
                                  .slices = {5, 8},
                                  .sequences = 2,
                                  .loss_scale = 0.25,
                                  .gemms = GemmChoice::cublaslt},
                     .weights = rounded(GetParam(), tame_matrices(model))});
    }
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Precisions, CublasLtStages, ::testing::Values(Precision::float16, Precision::bfloat16),
                         [](const auto& precision) { return precision.param == Precision::float16 ? "fp16" : "bf16"; });

TEST_P(CublasLtStages, GradientsEqualCpu) {
  for (Trained of : models()) {
    const TrainingResult reference = of.reference();
    for (const bool recompute : {false, true}) {
      of.training.recompute = recompute;
      of.training.backward = TrainingCase::Backward::whole;
      expect_close(of.result(), reference, allowed_of_stages(GetParam()));
      of.training.backward = TrainingCase::Backward::late;
      expect_close(of.result(), reference, allowed_of_stages(GetParam()));
    }
  }
}

TEST_P(CublasLtStages, SplitBackwardEqualsWholeBackward) {
  Trained of = models().front();
  of.training.microbatches = 2;
  const TrainingResult reference = of.result();
  for (const auto backward : {TrainingCase::Backward::split, TrainingCase::Backward::late_reversed}) {
    of.training.backward = backward;
    expect_close(of.result(), reference, 1e-6);
  }
}

TEST_P(CublasLtStages, TensorParallelGradientsEqualCpu) {
  for (Trained of : models()) {
    if (of.training.model.has_experts()) continue;
    of.training.sequences = 1;
    const TrainingResult reference = of.reference();
    of.training.tensor_parallel = 2;
    of.training.backward = TrainingCase::Backward::split;
    expect_close(of.result(), reference, allowed_of_stages(GetParam()));
  }
}

TEST_P(CublasLtStages, PartsOfExpertsEqualCpu) {
  if (test::small_scope()) GTEST_SKIP() << "SKIPPED: experts without sanitizers only";
  Trained of = models().back();
  ASSERT_TRUE(of.training.model.has_experts());
  of.training.slices = {13};
  const TrainingResult reference = of.reference();
  of.training.in_parts = true;
  expect_close(of.result(), reference, allowed_of_stages(GetParam()));
}

}  // namespace
}  // namespace sluice::test
