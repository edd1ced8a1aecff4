// The executor's gradients against those of one device that knows neither slices nor stages.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "exec/run_plan.h"
#include "model/errors.h"
#include "model/schedule/family.h"
#include "tests/support/all_schedules.h"
#include "tests/support/one_device.h"

namespace sluice {
namespace {

using test::OneDevice;
using test::Weights;

constexpr std::int64_t kTokens = 15;
constexpr double kTolerance = 1e-10;

// A first step of plain descent with rate 1 leaves w - g behind: the gradient can be read off.
RunSpec descent(const Transformer& model, Precision precision = Precision::float64) {
  RunSpec spec{.model = model, .precision = precision};
  spec.optimizer.kind = OptimizerStep::Kind::sgd;
  spec.optimizer.learning_rate = 1;
  return spec;
}

Weights minus(const Weights& a, const Weights& b) {
  Weights out = a;
  for (auto& [name, values] : out) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= b.at(name)[i];
  }
  return out;
}

// k slices of 15 tokens, the first ones longer: 6 + 4 + 3 + 2, 7 + 5 + 3, 9 + 6.
MicrobatchShape uneven(int k, int sequences = 1) {
  switch (k) {
    case 1: return {sequences, {15}};
    case 2: return {sequences, {9, 6}};
    case 3: return {sequences, {7, 5, 3}};
    default: return {sequences, {6, 4, 3, 2}};
  }
}

bool small_scope() { return std::getenv("SLUICE_TEST_SCOPE") != nullptr; }

void expect_gradients(const RunSpec& spec, const Schedule& schedule) {
  const RunPlan plan(spec, schedule);
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(spec.model.vocab), kTokens, 7);
  const test::Trained trained = test::train(plan, tokens);
  const OneDevice device(spec.model);
  const Weights initial = device.initial(spec.seed);
  const OneDevice::Result reference =
      device.gradient(initial, tokens, 0, 0, plan.sequences_per_batch(), 1 / plan.tokens_per_batch());
  EXPECT_NEAR(trained.report.runs.at(0).losses.at(0), reference.loss / plan.tokens_per_batch(), 1e-11);
  EXPECT_LT(test::relative_difference(minus(initial, trained.weights), reference.gradients), kTolerance);
}

// Every family with a flush, p up to 4, v up to 2, k up to 4 with uneven slices, both styles.
TEST(Gradients, AreThoseOfOneDevice) {
  int tried = 0;
  const test::Sizes sizes{.ranks = 4, .microbatches = small_scope() ? 4 : 8, .chunks = 2, .slices = 4};
  test::for_each_schedule(sizes, [&](const Schedule& made) {
    if (made.weight_policy() != WeightPolicy::flush) return;
    const int m = made.num_microbatches();
    if (m != 2 && m != 4 && m != 8) return;  // one fewer than ranks, as many, more
    if (small_scope() && made.num_ranks() == 3) return;
    SCOPED_TRACE(test::describe(made));
    Schedule schedule = made;
    schedule.resize({uneven(made.max_slices())});
    const int layers = std::max(made.num_stages(), 2);
    expect_gradients(descent(tried % 2 == 0 ? test::small_gpt(layers) : test::small_llama(layers)), schedule);
    ++tried;
  });
  EXPECT_GT(tried, small_scope() ? 100 : 300);
}

}  // namespace
}  // namespace sluice
