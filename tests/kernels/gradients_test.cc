// Compares the gradients of the kernels with finite differences of a model of plain loops.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/kernels/naive_model.h"
#include "tests/kernels/training_run.h"

namespace sluice::test {
namespace {

double loss_with(const TrainingCase& training, Matrices weights, const std::string& name, std::size_t i,
                 double change) {
  weights.at(name)[i] += change;
  return naive_loss(training.model, weights, training.batch());
}

// Fourth-order central difference: the error is change^4 f'''''/30, plus about 1e-16 loss / change from rounding.
double difference(const TrainingCase& training, const Matrices& weights, const std::string& name, std::size_t i) {
  constexpr double kChange = 1e-4;  // small, so that no token changes its experts
  const auto loss = [&](double change) { return loss_with(training, weights, name, i, change); };
  return (8 * (loss(kChange) - loss(-kChange)) - (loss(2 * kChange) - loss(-2 * kChange))) / (12 * kChange);
}

void expect_naive(const TrainingCase& training, std::uint64_t seed = 3) {
  const Matrices weights = random_matrices(training.model, seed);
  const TrainingResult result = run(training, weights);
  const double loss = naive_loss(training.model, weights, training.batch());
  EXPECT_NEAR(result.loss, loss, 1e-12 * loss);
  EXPECT_TRUE(result.intact);
  ASSERT_EQ(result.gradients.size(), weights.size());
  std::mt19937_64 random(11);
  for (const auto& [name, gradient] : result.gradients) {
    double largest = 0;
    for (const double g : gradient) largest = std::max(largest, std::abs(g));
    // The gradient of the keys' bias is 0: it adds the same number to all scores of a query, unless rotary embeddings
    // rotate it.
    const bool vanishes = training.model.positions > 0 && name.ends_with("key.bias");
    if (!vanishes) {
      EXPECT_GT(largest, 1e-3) << name;
    }
    for (int sample = 0; sample < 4; ++sample) {
      const std::size_t i = random() % gradient.size();
      EXPECT_NEAR(gradient[i], training.loss_scale * difference(training, weights, name, i), 1e-6 * (1 + largest))
          << training.model.name << ", " << name << "[" << i << "]";
    }
  }
}

TEST(Gradients, GptEqualsFiniteDifferences) {
  expect_naive({.model = small_gpt(), .stages = {whole(small_gpt())}, .slices = {9}, .sequences = 2});
}

TEST(Gradients, ExpertsEqualFiniteDifferences) {
  for (const Transformer& model : {small_expert_gpt(), small_expert_llama()}) {
    // With these weights every expert has tokens.
    expect_naive({.model = model, .stages = {whole(model)}, .slices = {9}, .sequences = 2}, 4);
  }
}

TEST(Gradients, OneExpertPerTokenEqualsFiniteDifferences) {
  Transformer model = small_expert_llama();
  model.experts.per_token = 1;
  expect_naive({.model = model, .stages = {whole(model)}, .slices = {9}, .sequences = 2});
}

TEST(Gradients, LlamaEqualsFiniteDifferences) {
  expect_naive({.model = small_llama(), .stages = {whole(small_llama())}, .slices = {9}, .sequences = 2});
}

}  // namespace
}  // namespace sluice::test
