// Tests initial weights, gradient norms and optimizer steps.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "model/blocks/model.h"
#include "tests/kernels/training_run.h"

namespace sluice::test {
namespace {

StageSpec spec_of(const Transformer& model, int t, int rank) {
  return {.model = model,
          .contents = {.layers = model.layers, .embedding = true, .head = true},
          .tensor_parallel = t,
          .tensor_rank = rank};
}

Transformer model_for_ranks() {
  Transformer model = small_llama();
  model.kv_heads = 4;
  model.vocab = 300;
  return model;
}

// Returns the initial weights as whole matrices, assembled from all ranks and stages.
Matrices initial(const std::vector<StageSpec>& specs, Precision precision, std::uint64_t seed) {
  Matrices out;
  for (const StageSpec& spec : specs) {
    const std::unique_ptr<Stage> stage = make_cpu_stage(spec, precision);
    const GuardedBuffer weights(stage->memory().weights);
    stage->initialise(weights.data(), seed);
    EXPECT_TRUE(weights.intact());
    for (const Parameter& p : stage->parameters()) {
      std::vector<double>& matrix = out[p.name];
      matrix.resize(p.all_rows * p.all_columns, -1e30);
      for (std::int64_t row = 0; row < p.rows; ++row) {
        for (std::int64_t column = 0; column < p.columns; ++column) {
          matrix[(p.first_row + row) * p.all_columns + p.first_column + column] =
              element(precision, weights.data(), p.offset + row * p.columns + column);
        }
      }
    }
  }
  return out;
}

TEST(Initialise, DoesNotDependOnTheParallelism) {
  const Transformer model = model_for_ranks();
  const Matrices whole = initial({spec_of(model, 1, 0)}, Precision::float64, 5);
  EXPECT_EQ(initial({spec_of(model, 2, 0), spec_of(model, 2, 1)}, Precision::float64, 5), whole);
  StageSpec first = spec_of(model, 1, 0);
  first.contents = {.layers = 1, .embedding = true};
  StageSpec second = spec_of(model, 1, 0);
  second.contents = {.layers = 1, .head = true};
  second.first_layer = 1;
  EXPECT_EQ(initial({first, second}, Precision::float64, 5), whole);
  EXPECT_NE(initial({first, second}, Precision::float64, 6), whole);
  // A tied copy equals the original.
  const Matrices gpt = initial({spec_of(small_gpt(), 1, 0)}, Precision::float64, 5);
  StageSpec last = spec_of(small_gpt(), 1, 0);
  last.contents = {.layers = 1, .head = true, .tied_copy = true};
  EXPECT_EQ(initial({last}, Precision::float64, 5).at("embedding.word.weight"), gpt.at("embedding.word.weight"));
  // Both precisions are equal up to rounding.
  const Matrices single = initial({spec_of(model, 1, 0)}, Precision::float32, 5);
  for (const auto& [name, matrix] : whole) {
    for (std::size_t i = 0; i < matrix.size(); ++i) {
      ASSERT_EQ(single.at(name)[i], static_cast<double>(static_cast<float>(matrix[i])));
    }
  }
}

// For all but one in some ten thousand seeds, the mean of a sample is within 4 deviations / sqrt(count) of 0, and its
// deviation within a fraction 4 / sqrt(2 count) of the expected one.
TEST(Initialise, HasTheStandardDeviationsOfGpt2) {
  const Matrices weights = initial({spec_of(small_gpt(), 1, 0)}, Precision::float64, 5);
  for (const auto& [name, matrix] : weights) {
    if (name.ends_with("bias")) {
      EXPECT_EQ(matrix, std::vector<double>(matrix.size(), 0.0)) << name;
      continue;
    }
    if (name.find("norm") != std::string::npos) {
      EXPECT_EQ(matrix, std::vector<double>(matrix.size(), 1.0)) << name;
      continue;
    }
    const bool into_residual = name.ends_with("output.weight") || name.ends_with("down.weight");
    const double expected = into_residual ? 0.02 / 2 : 0.02;  // 2 layers: sqrt(2 x 2)
    const auto count = static_cast<double>(matrix.size());
    double mean = 0;
    double squares = 0;
    for (const double w : matrix) {
      mean += w / count;
      squares += w * w / count;
    }
    EXPECT_NEAR(mean, 0, 4 * expected / std::sqrt(count)) << name;
    EXPECT_NEAR(std::sqrt(squares), expected, 4 * expected / std::sqrt(2 * count)) << name;
  }
}

// The squared norm of gradients that are all 1, including padding, is the number of parameters.
TEST(SquaredNorm, CountsEachParameterOnce) {
  Transformer model = small_gpt();
  model.vocab = 300;
  for (const int t : {1, 2, 4}) {
    double sum = 0;
    for (int rank = 0; rank < t; ++rank) {
      const std::unique_ptr<Stage> stage = make_cpu_stage(spec_of(model, t, rank), Precision::float32);
      const std::vector<float> gradients(static_cast<std::size_t>(stage->memory().gradients) / 4, 1.0F);
      sum += stage->squared_norm(reinterpret_cast<const std::byte*>(gradients.data()));
    }
    EXPECT_EQ(sum, static_cast<double>(parameters(model)));
  }
  // A tied copy is not counted either, which leaves the final norm.
  StageSpec last = spec_of(model, 1, 0);
  last.contents = {.head = true, .tied_copy = true};
  const std::unique_ptr<Stage> stage = make_cpu_stage(last, Precision::float32);
  const std::vector<float> gradients(static_cast<std::size_t>(stage->memory().gradients) / 4, 1.0F);
  EXPECT_EQ(stage->squared_norm(reinterpret_cast<const std::byte*>(gradients.data())), 2.0 * model.hidden);
}

// Returns a number of either sign for element i of vector `which`.
double value(std::int64_t i, int which) { return std::sin(static_cast<double>(i) * 0.7 + which); }

struct Buffers {
  explicit Buffers(const Stage& stage)
      : weights(stage.memory().weights),
        new_weights(stage.memory().weights),
        gradients(stage.memory().gradients),
        optimizer_state(stage.memory().optimizer_state) {
    weights.fill(std::byte{0});
    gradients.fill(std::byte{0});
    optimizer_state.fill(std::byte{0});
    for (const Parameter& p : stage.parameters()) {
      for (std::int64_t i = p.offset; i < p.offset + p.size(); ++i) {
        set_element(Precision::float64, weights.data(), i, value(i, 1));
        set_element(Precision::float64, gradients.data(), i, value(i, 2));
      }
    }
  }
  GuardedBuffer weights;
  GuardedBuffer new_weights;
  GuardedBuffer gradients;
  GuardedBuffer optimizer_state;
};

double get(const GuardedBuffer& buffer, std::int64_t i) { return element(Precision::float64, buffer.data(), i); }

TEST(Step, AdamEqualsThePaper) {
  const Transformer model = model_for_ranks();
  const std::unique_ptr<Stage> stage = make_cpu_stage(spec_of(model, 2, 1), Precision::float64);
  Buffers buffers(*stage);
  OptimizerStep step{.learning_rate = 0.01, .weight_decay = 0.1, .gradient_scale = 0.5};
  std::int64_t checked = 0;
  // Three steps with the same gradients, the second and third in place.
  for (step.number = 1; step.number <= 3; ++step.number) {
    const std::byte* const from = step.number == 1 ? buffers.weights.data() : buffers.new_weights.data();
    stage->step(from, buffers.new_weights.data(), buffers.optimizer_state.data(), buffers.gradients.data(), step);
  }
  for (const Parameter& p : stage->parameters()) {
    for (std::int64_t i = p.offset; i < p.offset + p.size(); ++i, ++checked) {
      const double gradient = 0.5 * value(i, 2);
      double w = value(i, 1);
      double m = 0;
      double v = 0;
      for (int number = 1; number <= 3; ++number) {
        m = 0.9 * m + 0.1 * gradient;
        v = 0.95 * v + 0.05 * gradient * gradient;
        const double update = m / (1 - std::pow(0.9, number)) / (std::sqrt(v / (1 - std::pow(0.95, number))) + 1e-8);
        w -= 0.01 * (update + (p.all_columns > 1 ? 0.1 * w : 0));
      }
      ASSERT_NEAR(get(buffers.new_weights, i), w, 1e-14) << p.name;
      ASSERT_NEAR(get(buffers.optimizer_state, i), m, 1e-14);
      ASSERT_NEAR(get(buffers.optimizer_state, stage->memory().weights / 8 + i), v, 1e-14);
    }
  }
  EXPECT_GT(checked, 0);
  EXPECT_TRUE(buffers.new_weights.intact() && buffers.optimizer_state.intact());
  // Padding stays zero, also in a new version.
  double sum = 0;
  for (std::int64_t i = 0; i < stage->memory().weights / 8; ++i) sum += std::abs(get(buffers.new_weights, i));
  double of_parameters = 0;
  for (const Parameter& p : stage->parameters()) {
    for (std::int64_t i = p.offset; i < p.offset + p.size(); ++i) {
      of_parameters += std::abs(get(buffers.new_weights, i));
    }
  }
  EXPECT_EQ(sum, of_parameters);
}

TEST(Step, SgdSubtractsTheScaledGradient) {
  const std::unique_ptr<Stage> stage = make_cpu_stage(spec_of(small_gpt(), 1, 0), Precision::float64);
  Buffers buffers(*stage);
  const OptimizerStep step{
      .kind = OptimizerStep::Kind::sgd, .learning_rate = 0.1, .weight_decay = 0.2, .gradient_scale = 0.5};
  stage->step(buffers.weights.data(), buffers.new_weights.data(), nullptr, buffers.gradients.data(), step);
  for (const Parameter& p : stage->parameters()) {
    for (std::int64_t i = p.offset; i < p.offset + p.size(); ++i) {
      const double decay = p.all_columns > 1 ? 0.1 * 0.2 * value(i, 1) : 0;
      ASSERT_NEAR(get(buffers.new_weights, i), value(i, 1) - 0.1 * 0.5 * value(i, 2) - decay, 1e-15) << p.name;
      ASSERT_EQ(get(buffers.weights, i), value(i, 1));
    }
  }
}

}  // namespace
}  // namespace sluice::test
