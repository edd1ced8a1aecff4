// Schedules without a flush against their update rules, applied to gradients of one device.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "exec/plan/run_plan.h"
#include "model/schedule/family.h"
#include "tests/support/all_schedules.h"
#include "tests/support/golden.h"
#include "tests/support/one_device.h"
#include "tests/support/straight_line.h"

namespace sluice::test {
namespace {

constexpr std::int64_t kVersionTokens = 12;
constexpr double kRate = 0.5;
constexpr int kSteps = 20;

RunSpec versions_descent(const Transformer& model) {
  RunSpec spec{.model = model, .precision = Precision::float64};
  spec.optimizer.kind = OptimizerStep::Kind::sgd;
  spec.optimizer.learning_rate = kRate;
  return spec;
}

Schedule versioned_schedule(const char* family, int ranks, int microbatches, int batches) {
  FamilyParams params{.ranks = ranks, .microbatches = microbatches, .batches = batches};
  params.shape = {1, {kVersionTokens}};
  return make_schedule(find_family(family), params);
}

void descend(Weights& weights, const Weights& gradients) {
  for (auto& [name, values] : weights) {
    const auto& slope = gradients.at(name);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= kRate * slope[i];
  }
}

// W(t+1) = W(t) - rate f'(W(t-1)) (Narayanan et al. 2021, 2BW, 3.1).
void expect_two_buffered(const Transformer& model, int ranks, int microbatches, int data) {
  RunSpec spec = versions_descent(model);
  spec.data_parallel = data;
  const RunPlan plan(spec, versioned_schedule("pipedream-2bw", ranks, microbatches, kSteps));
  const TokenSource tokens = TokenSource::synthetic(37, kVersionTokens, 11);
  const OneDevice device(model);
  std::vector<Weights> version = {device.initial(spec.seed)};
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto& read = version[std::max(step - 1, 0)];
    const auto at = device.gradient(read, tokens, step, 0, plan.sequences_per_batch(), 1 / plan.tokens_per_batch());
    losses.push_back(at.loss / plan.tokens_per_batch());
    Weights next = version.back();
    descend(next, at.gradients);
    version.push_back(std::move(next));
  }
  const test::Trained trained = test::train(plan, tokens);
  EXPECT_LT(test::relative_difference(trained.weights, version.back()), 1e-10);
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(trained.report.runs.at(0).losses.at(static_cast<std::size_t>(step)), losses[step], 1e-10);
  }
  // The weights change enough for a wrong version to be detected.
  EXPECT_GT(test::relative_difference(version.back(), version[kSteps - 1]), 1e-4);
}

TEST(DoubleBuffered, FollowsTheUpdateRule) {
  for (const int ranks : {1, 2, 4}) {
    for (const int microbatches : {4, 5}) {
      SCOPED_TRACE("p=" + std::to_string(ranks) + " m=" + std::to_string(microbatches));
      expect_two_buffered(test::small_gpt(4), ranks, microbatches, 1);
      expect_two_buffered(test::small_llama(4), ranks, microbatches, ranks == 2 ? 2 : 1);
    }
  }
}

// Microbatch n on rank r of p reads the weights after n - (p - r) + 1 steps, one step per microbatch (Narayanan et al.
// 2019, PipeDream, 3.3, weight stashing without vertical sync).
TEST(Stashed, FollowsTheUpdateRule) {
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE("p=" + std::to_string(ranks));
    const Transformer model = test::small_llama(4);
    const RunSpec spec = versions_descent(model);
    const RunPlan plan(spec, versioned_schedule("pipedream", ranks, kSteps, 1));
    const TokenSource tokens = TokenSource::synthetic(37, kVersionTokens, 11);
    const OneDevice device(model);
    std::vector<Weights> version = {device.initial(spec.seed)};
    const auto rank_of = [&](const std::string& name) {
      if (name.starts_with("layers.")) return (name[7] - '0') * ranks / model.layers;
      return name.starts_with("embedding") ? 0 : ranks - 1;
    };
    for (int n = 0; n < kSteps; ++n) {
      Weights read = version[0];
      for (auto& [name, values] : read) {
        values = version[std::max(0, n - (ranks - rank_of(name)) + 1)].at(name);
      }
      const auto at = device.gradient(read, tokens, 0, n, 1, 1.0 / static_cast<double>(kVersionTokens));
      Weights next = version.back();
      descend(next, at.gradients);
      version.push_back(std::move(next));
    }
    const test::Trained trained = test::train(plan, tokens);
    EXPECT_LT(test::relative_difference(trained.weights, version.back()), 1e-10);
  }
}

// Bitwise comparison in float32: the executor against one thread that runs the ops in the same order.

MicrobatchShape uneven(int k) {
  const std::vector<std::int64_t> cuts[] = {{15}, {9, 6}, {7, 5, 3}, {6, 4, 3, 2}};
  return {1, cuts[k - 1]};
}

void expect_same_bits(const RunSpec& spec, const Schedule& schedule) {
  const RunPlan plan(spec, schedule);
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(spec.model.vocab), 15, 5);
  EXPECT_EQ(test::train(plan, tokens).weights, test::straight_line(plan, tokens));
}

RunSpec adam(const Transformer& model) {
  RunSpec spec{.model = model, .precision = Precision::float32};
  spec.optimizer.weight_decay = 0.1;
  return spec;
}

TEST(Bitwise, ExecutorMatchesOneThreadForEveryFamily) {
  int tried = 0;
  const bool small = test::small_scope();
  test::for_each_schedule(
      {.ranks = 4, .microbatches = 8, .chunks = 2, .slices = 4, .vocabulary = false}, [&](const Schedule& made) {
        if (made.weight_policy() != WeightPolicy::flush) return;
        if (small && (made.num_microbatches() != 4 || made.num_ranks() == 3)) return;
        SCOPED_TRACE(test::describe(made));
        Schedule schedule = made;
        schedule.resize({uneven(made.max_slices())});
        RunSpec spec = adam(tried % 2 == 0 ? test::small_gpt(made.num_stages()) : test::small_llama(made.num_stages()));
        spec.data_parallel = tried % 3 == 0 ? 2 : 1;
        spec.recompute = tried % 5 == 0;
        expect_same_bits(spec, schedule);
        if (tried % 4 == 0) {
          spec.model =
              tried % 8 == 0 ? test::small_mixtral(made.num_stages()) : test::small_expert_gpt(made.num_stages());
          expect_same_bits(spec, schedule);
        }
        ++tried;
      });
  EXPECT_GT(tried, small ? 50 : 100);
}

}  // namespace
}  // namespace sluice::test
