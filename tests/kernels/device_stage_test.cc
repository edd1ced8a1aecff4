// Stages on devices against those of the CPU in double, with the same weights of 16 bits.

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
#include "tests/support/test_device.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

StageContents whole(const Transformer& model) { return {.layers = model.layers, .embedding = true, .head = true}; }

// Each kernel rounds what it puts out, by up to half a unit in the last place: 2^-11 in fp16, 2^-8 in bf16. What some
// two dozen of them, one behind the other, add up to as random errors do is below ten of that.
double allowed_of_stages(Precision precision) { return 10 * (precision == Precision::float16 ? 0x1p-11 : 0x1p-8); }

double norm(const std::vector<double>& numbers) {
  return std::sqrt(std::inner_product(numbers.begin(), numbers.end(), numbers.begin(), 0.0));
}

// Every gradient to `relative` of its matrix's norm; those that vanish (a GPT's key biases), of their queries'.
void expect_close(const TrainingResult& result, const TrainingResult& reference, double relative) {
  EXPECT_TRUE(result.intact);
  EXPECT_NEAR(result.loss, reference.loss, relative * reference.loss);
  EXPECT_NEAR(result.squared_norm, reference.squared_norm, 2 * relative * reference.squared_norm);
  ASSERT_EQ(result.gradients.size(), reference.gradients.size());
  for (const auto& [name, gradient] : reference.gradients) {
    std::vector<double> difference = result.gradients.at(name);
    ASSERT_EQ(difference.size(), gradient.size()) << name;
    for (std::size_t i = 0; i < gradient.size(); ++i) difference[i] -= gradient[i];
    double scale = norm(gradient);
    const std::size_t key = name.find("key.bias");
    if (key != std::string::npos) scale = norm(reference.gradients.at(std::string(name).replace(key, 3, "query")));
    EXPECT_LT(norm(difference), relative * scale) << name;
  }
}

// Whose products are as large as what they are applied to, so that no softmax is all but certain.
Matrices tame_matrices(const Transformer& model) {
  Matrices out = random_matrices(model, 3);
  for (auto& [name, matrix] : out) {
    if (name.ends_with("norm1.weight") || name.ends_with("norm2.weight") || name.ends_with("norm.weight")) continue;
    for (double& number : matrix) number /= 0.3 * std::sqrt(static_cast<double>(model.hidden));
  }
  return out;
}

bool has_device() { return make_test_device() != nullptr; }
bool has(Precision precision) { return precision == Precision::float16 || make_test_device()->has_bfloat16(); }

class DeviceStages : public ::testing::TestWithParam<Precision> {
 protected:
  void SetUp() override {
    if (!has_device() || !has(GetParam())) GTEST_SKIP() << "SKIPPED: no GPU, or none for these numbers";
  }
  // Both models, with weights of the precision.
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
  static std::vector<Trained> both_models(const std::function<void(Transformer&)>& change = [](Transformer&) {}) {
    // In the sanitizers' run one of them with each precision.
    const bool small = std::getenv("SLUICE_TEST_SCOPE") != nullptr;
    std::vector<Trained> out;
    for (Transformer model : {small_gpt(), small_llama()}) {
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

TEST_P(DeviceStages, HaveTheGradientsOfTheCpu) {
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

// Rows of chunks of 8, and heads that turn by chunks: what a model has that fits vectors.
TEST_P(DeviceStages, InWholeChunks) {
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

// Heads of 64, which one kernel's attention takes where the device has matrix units.
TEST_P(DeviceStages, WithHeadsOf64) {
  for (Trained of : both_models([](Transformer& model) {
         model.layers = 1;
         model.heads = 2;
         model.kv_heads = model.gated ? 1 : 2;
         model.hidden = 64;
         model.head_dim = 64;
       })) {
    of.training.sequences = 1;
    const TrainingResult reference = of.reference();
    of.training.slices = {6, 7};
    expect_close(of.result(), reference, allowed_of_stages(GetParam()));
  }
}

// The same work in two calls: I and W give what B gives, to the order in which rows of a word are added to it.
TEST_P(DeviceStages, HalvesOfTheBackwardAreTheWhole) {
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

TEST_P(DeviceStages, RecomputeChangesNothing) {
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

TEST_P(DeviceStages, OfAnyLayersAddUpToTheWhole) {
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
          // The tied copy's gradient is not yet summed with the original's, so the norm is another.
          if (of.training.model.tied_embeddings && !shares) result.squared_norm = reference.squared_norm;
          expect_close(result, reference, allowed_of_stages(GetParam()));
        }
      }
    }
  }
}

// The vocabulary of 300 is padded: to 384 columns on one rank, to 512 on two and four, of which the last has none but
// padding.
TEST_P(DeviceStages, OverTensorRanks) {
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

// A loss scale that overflows fp16: gradients are not finite, and their norm says so. bf16 has the range.
TEST_P(DeviceStages, AnOverflowIsInTheNorm) {
  for (Trained of : both_models()) {
    of.training.loss_scale = 1e6;
    EXPECT_EQ(std::isfinite(of.result().squared_norm), GetParam() == Precision::bfloat16);
  }
}

StageSpec spec_of(const Transformer& model) { return {.model = model, .contents = whole(model)}; }

TEST(DeviceMemoryPlan, IsWhatTheSpecificationSays) {
  Transformer model = small_gpt();
  model.hidden = 32;
  model.head_dim = 8;
  model.ffn_hidden = 64;
  const SliceShape shape{.sequences = 2, .tokens = 8};
  constexpr std::int64_t n = 16, h = 32, a = 4, f = 64, v = 128;  // 50 tokens pad to 128
  constexpr std::int64_t layers = 2;
  StageSpec spec{.model = model, .contents = {.layers = 2, .head = true, .tied_copy = true}, .sliced = true};
  const auto made = [&] { return device_kernels()->make_stage(spec, Precision::bfloat16); };
  // As on the CPU, 2 bytes each, but 4 for two numbers of each norm and a log-sum for each head; sizes are such that
  // nothing is padded.
  SliceMemory memory = made()->slice_memory(shape);
  EXPECT_EQ(memory.to_input_gradient, layers * n * (2 * (3 * h + f) + 4 * (4 + a)) + n * (2 * h + 8));
  EXPECT_EQ(memory.to_weight_gradient, 2 * (layers * n * (3 * h + f) + n * (h + v)));
  EXPECT_EQ(memory.output_gradients, 2 * layers * n * (3 * h + h + f + h));
  EXPECT_EQ(memory.keys_values, 2 * layers * n * 2 * h);
  EXPECT_EQ(memory.keys_values_gradient, 2 * memory.keys_values);
  EXPECT_EQ(memory.boundary, 2 * n * h);
  // Half the weights, gradients in float32, and three numbers of the optimizer for each weight.
  const StageMemory cpu = make_cpu_stage(spec, Precision::float32)->memory();
  EXPECT_EQ(made()->memory().weights, cpu.weights / 2);
  EXPECT_EQ(made()->memory().gradients, cpu.weights);
  EXPECT_EQ(made()->memory().moments, 3 * cpu.weights);

  spec.recompute = true;
  memory = made()->slice_memory(shape);
  EXPECT_EQ(memory.to_input_gradient, 2 * layers * n * h + n * (2 * h + 8));
  EXPECT_EQ(memory.to_weight_gradient, 2 * n * (h + v));
  EXPECT_EQ(memory.output_gradients, 2 * layers * n * (5 * h + f + 3 * h + f));
  spec.sliced = false;
  EXPECT_EQ(made()->slice_memory(shape).keys_values, 0);
  EXPECT_EQ(made()->slice_memory(shape).keys_values_gradient, 0);
}

TEST(DeviceRefusals, AreInputErrors) {
  const auto refusal = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const InputError& error) {
      return error.what();
    }
    return "nothing";
  };
  StageSpec spec = spec_of(small_llama());
  EXPECT_EQ(refusal([&] { device_kernels()->make_stage(spec, Precision::float64); }),
            "precision: a device computes in fp16 or bf16");
  spec.model.experts.count = 4;
  EXPECT_THAT(refusal([&] { device_kernels()->make_stage(spec, Precision::bfloat16); }),
              HasSubstr("the kernels do not compute a mixture of experts"));
  // Both before anything is put on a stream.
  const std::vector<std::byte*> slices(129);
  SliceCall call{.shape = {.tokens = 1, .context = 128}, .keys_values = slices};
  EXPECT_EQ(refusal([&] { device_kernels()->make_stage(spec_of(small_llama()), Precision::bfloat16)->forward(call); }),
            "small Llama: a sequence has at most 128 slices on a device, got 129");
  call.keys_values = std::span(slices).first(1);
  EXPECT_EQ(refusal([&] { device_kernels()->make_stage(spec_of(small_gpt()), Precision::bfloat16)->forward(call); }),
            "small GPT: 64 positions are learned, a slice ends at 129");
}

}  // namespace
}  // namespace sluice::test
