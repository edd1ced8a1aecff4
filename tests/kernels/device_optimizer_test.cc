// Compares optimizer steps on a device, in float32 with 16-bit weights, with those of the CPU in double precision.

#include <cmath>
#include <limits>

#include "kernels/device_kernels.h"
#include "tests/kernels/device_fixture.h"
#include "tests/kernels/training_run.h"

namespace sluice::test {
namespace {

using Numbers = std::vector<double>;

class DeviceOptimizer : public DeviceKernels {
 protected:
  void SetUp() override {
    DeviceKernels::SetUp();
    if (IsSkipped()) return;
    const Transformer model = small_gpt();
    const StageSpec spec{.model = model,
                         .contents = {.layers = model.layers, .embedding = true, .head = true},
                         .tensor_parallel = 2,
                         .tensor_rank = 1};
    stage_ =
        device_kernels()->make_stage(spec, element() == Element::float16 ? Precision::float16 : Precision::bfloat16);
    cpu_stage_ = make_cpu_stage(spec, Precision::float64);
    elements_ = stage_->memory().weights / 2;
    weights_ = &memory(stage_->memory().weights);
    state_ = &memory(stage_->memory().optimizer_state);
    state_->fill(std::byte{0});
    // `initialise` writes float32.
    std::vector<std::byte> first(static_cast<std::size_t>(4 * elements_));
    stage_->initialise(first.data(), 7);
    DeviceMemory& there = memory(4 * elements_);
    there.fill(std::byte{0});
    stage_->draw_weights(there.data(), 7, *stream_);
    stage_->set_weights(there.data(), weights_->data(), state_->data(), *stream_);
    device_->synchronize(*stream_);
    master_ = as_numbers(Element::float32, first);
  }

  // Returns random gradients of parameters, and zeros in padding.
  Numbers random_gradients() {
    const Numbers numbers = random_of(Element::float32, elements_, 0.01);
    Numbers out(numbers.size());
    for (const Parameter& p : stage_->parameters()) {
      std::copy_n(numbers.begin() + p.offset, p.size(), out.begin() + p.offset);
    }
    return out;
  }
  Numbers master() const {
    device_->synchronize(*stream_);
    Numbers out = as_numbers(Element::float32, state_->read());
    out.resize(elements_);
    return out;
  }
  Numbers weights() const {
    device_->synchronize(*stream_);
    return as_numbers(element(), weights_->read());
  }
  const std::byte* bytes(const float* place) const { return reinterpret_cast<const std::byte*>(place); }

  void expect_steps_equal_cpu(OptimizerStep::Kind kind) {
    Numbers reference = master_;
    Numbers reference_state(2 * reference.size());
    const float* const half = floats(Numbers{0.5});
    for (int i = 1; i <= 20; ++i) {
      OptimizerStep step{
          .kind = kind, .learning_rate = 1e-2, .weight_decay = 0.1, .gradient_scale = 2 * 0.7, .number = i};
      const Numbers gradients = random_gradients();
      step.stream = stream_.get();
      step.scale_on_device = half;
      stage_->step(weights_->data(), weights_->data(), state_->data(), bytes(floats(gradients)), step);
      step.gradient_scale = 0.7;
      auto* const of_reference = reinterpret_cast<std::byte*>(reference.data());
      cpu_stage_->step(of_reference, of_reference, reinterpret_cast<std::byte*>(reference_state.data()),
                       reinterpret_cast<const std::byte*>(gradients.data()), step);
    }
    EXPECT_LT(relative_error(master(), reference), 1e-5);
    EXPECT_EQ(weights(), rounded(element(), master()));
    EXPECT_GT(relative_error(master(), master_), 1e-3) << "the steps have changed the weights";
  }

  std::unique_ptr<Stage> stage_;
  std::unique_ptr<Stage> cpu_stage_;
  std::int64_t elements_ = 0;
  DeviceMemory* weights_ = nullptr;
  DeviceMemory* state_ = nullptr;
  Numbers master_;
};
INSTANTIATE_TEST_SUITE_P(Types, DeviceOptimizer, ::testing::Values(Element::float16, Element::bfloat16),
                         [](const auto& type) { return type.param == Element::float16 ? "fp16" : "bf16"; });

TEST_P(DeviceOptimizer, InitialWeightsEqualCpu) {
  // A GPU's logarithm and cosine are not the host's to the last place.
  EXPECT_LT(relative_error(master(), master_), 1e-7);
  EXPECT_EQ(weights(), rounded(element(), master()));
  EXPECT_GT(relative_error(weights(), Numbers(master_.size(), 1.0)), 0.1) << "the weights are not constant";
}

TEST_P(DeviceOptimizer, TwentyAdamStepsEqualCpu) { expect_steps_equal_cpu(OptimizerStep::Kind::adam); }

TEST_P(DeviceOptimizer, TwentySgdStepsEqualCpu) { expect_steps_equal_cpu(OptimizerStep::Kind::sgd); }

TEST_P(DeviceOptimizer, StepIsSkippedOnOverflow) {
  DeviceMemory& others = memory(stage_->memory().weights);
  OptimizerStep step{.weight_decay = 0.1};
  step.stream = stream_.get();
  step.scale_on_device = floats(Numbers{std::numeric_limits<double>::quiet_NaN()});
  const Numbers gradients(static_cast<std::size_t>(elements_), std::numeric_limits<double>::infinity());
  const std::vector<std::byte> before = state_->read();
  stage_->step(weights_->data(), others.data(), state_->data(), bytes(floats(gradients)), step);
  device_->synchronize(*stream_);
  EXPECT_EQ(state_->read(), before);
  // The next weight version equals the previous one.
  EXPECT_EQ(others.read(), weights_->read());
}

// Only `counted` parameters contribute: the second tensor rank does not count replicated parameters.
TEST_P(DeviceOptimizer, SquaredNormEqualsCpu) {
  const Numbers gradients = random_gradients();
  float* const squares = floats(Numbers{2.5});
  stage_->add_squared_norm(bytes(floats(gradients)), squares, *stream_);
  const double expected = cpu_stage_->squared_norm(reinterpret_cast<const std::byte*>(gradients.data()));
  EXPECT_NEAR(read(squares).front(), 2.5 + expected, 1e-5 * expected);
  double all = 0;
  for (const double gradient : gradients) all += gradient * gradient;
  EXPECT_LT(expected, 0.99 * all);
}

}  // namespace
}  // namespace sluice::test
