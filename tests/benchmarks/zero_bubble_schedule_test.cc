#include "benchmarks/accuracy/zero_bubble_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/schedule/schedule_file.h"
#include "tests/support/golden.h"
#include "tests/support/oracle.h"

namespace sluice::bench::accuracy {
namespace {

using std::chrono::microseconds;
using test::OracleTimes;

ZeroBubbleProblem even(int ranks, int microbatches, RankBudget budget, Duration hop = {}) {
  return {.num_microbatches = microbatches,
          .ranks = std::vector<RankBudget>(static_cast<std::size_t>(ranks), budget),
          .hop = hop};
}

RankBudget times(int forward, int input_gradient, int weight_gradient) {
  return {.forward = Duration(forward),
          .input_gradient = Duration(input_gradient),
          .weight_gradient = Duration(weight_gradient)};
}

OracleTimes oracle(const ZeroBubbleProblem& problem, const Schedule& schedule) {
  const auto cost = [&](const Op& op) {
    const RankBudget& budget = problem.ranks.at(static_cast<std::size_t>(op.stage));
    switch (op.kind) {
      case OpKind::F: return budget.forward.count();
      case OpKind::I: return budget.input_gradient.count();
      case OpKind::W: return budget.weight_gradient.count();
      case OpKind::B: return (budget.input_gradient + budget.weight_gradient).count();
    }
    return Duration::rep{};
  };
  return test::longest_path(schedule, {.op = cost, .joint = {}, .hop = problem.hop.count()});
}

const std::vector<ZeroBubbleRules>& all_rules() {
  static const std::vector<ZeroBubbleRules> rules = [] {
    std::vector<ZeroBubbleRules> out;
    for (int i = 0; i < 16; ++i) out.push_back({(i & 1) != 0, (i & 2) != 0, (i & 4) != 0, (i & 8) != 0});
    return out;
  }();
  return rules;
}

// Ranks that differ in times, activations and limits, from one activation to more than all microbatches.
ZeroBubbleProblem random_problem(std::mt19937& random) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  ZeroBubbleProblem problem{.num_microbatches = pick(1, 12), .hop = Duration(pick(0, 1) * pick(0, 15))};
  const int ranks = pick(1, 6);
  const bool alike = pick(0, 2) == 0;
  for (int rank = 0; rank < ranks; ++rank) {
    RankBudget budget = times(pick(0, 20), pick(0, 20), pick(0, 20));
    budget.activation = pick(1, 10);
    budget.kept = pick(0, static_cast<int>(budget.activation));
    budget.limit = budget.activation * pick(1, 2 * ranks) + pick(0, 3);
    problem.ranks.push_back(alike && rank > 0 ? problem.ranks[0] : budget);
  }
  return problem;
}

TEST(ZeroBubbleSchedule, EveryRuleKeepsTheLimitsWithoutDeadlock) {
  std::mt19937 random(20240110);
  const int cases = test::small_scope() ? 200 : 2000;
  for (int i = 0; i < cases; ++i) {
    SCOPED_TRACE(i);
    const ZeroBubbleProblem problem = random_problem(random);
    for (const ZeroBubbleRules& rules : all_rules()) {
      const Schedule schedule = zero_bubble_schedule(problem, rules);  // its constructor checks: every op once
      EXPECT_FALSE(oracle(problem, schedule).deadlock);
      for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
        EXPECT_EQ(schedule.ops(rank).size(), 3u * static_cast<std::size_t>(problem.num_microbatches));
        const RankBudget& budget = problem.ranks[rank];
        EXPECT_LE(peak_held(schedule, rank, budget), budget.limit);
      }
    }
  }
}

TEST(ZeroBubblePlan, IsTheBestOfAllRulesAndNotBelowItsLowerBounds) {
  std::mt19937 random(7);
  const int cases = test::small_scope() ? 100 : 1000;
  for (int i = 0; i < cases; ++i) {
    SCOPED_TRACE(i);
    const ZeroBubbleProblem problem = random_problem(random);
    const ZeroBubblePlan by_span = plan_zero_bubble(problem, ZeroBubbleGoal::span);
    const ZeroBubblePlan by_makespan = plan_zero_bubble(problem, ZeroBubbleGoal::makespan);
    for (const ZeroBubblePlan* plan : {&by_span, &by_makespan}) {
      const OracleTimes found = oracle(problem, plan->schedule);
      EXPECT_EQ(plan->span.count(), found.largest_span());
      EXPECT_EQ(plan->makespan.count(), found.makespan());
      EXPECT_GE(plan->span, plan->least_span);
      EXPECT_GE(plan->makespan, plan->least_makespan);
    }
    for (const ZeroBubbleRules& rules : all_rules()) {
      const OracleTimes found = oracle(problem, zero_bubble_schedule(problem, rules));
      EXPECT_LE(by_span.span.count(), found.largest_span());
      EXPECT_LE(by_makespan.makespan.count(), found.makespan());
    }
    EXPECT_EQ(by_span.schedule.parts().orders, plan_zero_bubble(problem).schedule.parts().orders);
  }
}

// zb-h1 holds p activations until W on every rank, zb-h2 2p - 1 (docs of the families).
TEST(ZeroBubblePlan, IsNeverWorseThanTheFamiliesThatFit) {
  std::mt19937 random(11);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int i = 0; i < 300; ++i) {
    const int ranks = pick(1, 6);
    ZeroBubbleProblem problem{.num_microbatches = pick(1, 16), .hop = Duration(pick(0, 5))};
    for (int rank = 0; rank < ranks; ++rank) problem.ranks.push_back(times(pick(1, 20), pick(1, 20), pick(1, 20)));
    for (const auto& [family, limit] : {std::pair("zb-h1", ranks), std::pair("zb-h2", 2 * ranks - 1)}) {
      for (RankBudget& budget : problem.ranks) budget.limit = limit;
      const Schedule other =
          make_schedule(find_family(family), {.ranks = ranks, .microbatches = problem.num_microbatches});
      const OracleTimes found = oracle(problem, other);
      EXPECT_LE(plan_zero_bubble(problem, ZeroBubbleGoal::makespan).makespan.count(), found.makespan()) << family;
      EXPECT_LE(plan_zero_bubble(problem, ZeroBubbleGoal::span).span.count(), found.largest_span()) << family;
    }
  }
}

// The minimal makespans of four ranks, four microbatches, f = b = w = 1 and a W that releases everything, from an exact
// search: 36, 21, 18, 15 for limits of 1 to 4 activations. One at a time: 4·(4 + 4 + 1). (For 3 the plan takes 19.)
TEST(ZeroBubblePlan, IsOptimalUnderTightLimits) {
  for (const auto& [limit, least] : {std::pair(1, 36), std::pair(2, 21), std::pair(4, 15)}) {
    RankBudget budget = times(1, 1, 1);
    budget.limit = limit;
    EXPECT_EQ(plan_zero_bubble(even(4, 4, budget), ZeroBubbleGoal::makespan).makespan.count(), least) << limit;
  }
}

// Equal F, I and W and 2p - 1 activations: no rank waits after its first op, as in zb-h2.
TEST(ZeroBubblePlan, LeavesNoBubbleWhereMemoryAllowsIt) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    RankBudget budget = times(10, 10, 10);
    budget.limit = 2 * ranks - 1;
    const ZeroBubblePlan plan = plan_zero_bubble(even(ranks, 3 * ranks, budget));
    EXPECT_EQ(plan.span, Duration(3 * ranks * 30)) << ranks;
    EXPECT_EQ(plan.span, plan.least_span);
  }
}

// Qi et al. 2023 (arXiv:2401.10241), table 6: the times of 1.5B and 14.6B; table 5: the bubble rates of ZB-1p and
// ZB-2p, with limits of p and 2p times 34 h + 5 a s bytes per token and layer, of which W releases 32 h.
TEST(ZeroBubblePlan, ReproducesThePublishedBubbleRates) {
  struct Row {
    int p, m;
    std::int64_t h, a;
    int f, b, w, c;
    double zb_1p, zb_2p;
  };
  const Row rows[] = {
      {8, 24, 2304, 24, 18522, 18086, 9337, 601, 0.1585, 0.0433},
      {8, 32, 2304, 24, 18513, 18086, 9331, 626, 0.1242, 0.0039},
      {8, 64, 2304, 24, 18546, 18097, 9321, 762, 0.0674, 0.0026},
      {16, 48, 5120, 40, 11347, 11248, 8132, 377, 0.1397, 0.0066},
      {16, 64, 5120, 40, 11307, 11254, 8101, 379, 0.1088, 0.0054},
      {16, 128, 5120, 40, 11325, 11308, 8109, 378, 0.0576, 0.0028},
  };
  for (const Row& row : rows) {
    RankBudget budget{.forward = microseconds(row.f),
                      .input_gradient = microseconds(row.b),
                      .weight_gradient = microseconds(row.w),
                      .activation = 34 * row.h + 5 * row.a * 1024,
                      .kept = 32 * row.h};
    for (const auto& [limit, rate] : {std::pair(1, row.zb_1p), std::pair(2, row.zb_2p)}) {
      budget.limit = std::int64_t{limit} * row.p * budget.activation;
      const ZeroBubblePlan plan = plan_zero_bubble(even(row.p, row.m, budget, microseconds(row.c)));
      const double work = 1000.0 * row.m * (row.f + row.b + row.w);
      EXPECT_NEAR(1 - work / static_cast<double>(plan.span.count()), rate, 0.00005)
          << "p=" << row.p << " m=" << row.m << " limit=" << limit;
    }
  }
}

TEST(ZeroBubblePlan, SurvivesARoundTripThroughAScheduleFile) {
  RankBudget budget = times(5, 6, 4);
  budget.limit = 5;
  const Schedule schedule = plan_zero_bubble(even(3, 4, budget)).schedule;
  EXPECT_EQ(schedule_from_json(schedule_to_json(schedule), "plan.json").parts().orders, schedule.parts().orders);
}

void expect_rejected(const ZeroBubbleProblem& problem, const std::string& reason) {
  try {
    plan_zero_bubble(problem);
    ADD_FAILURE() << "not rejected: " << reason;
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(reason));
  }
}

TEST(ZeroBubblePlan, RejectsInvalidProblems) {
  RankBudget good = times(1, 1, 1);
  good.limit = 4;
  expect_rejected(even(0, 4, good), "ranks: expected 1 to 8192, got 0");
  expect_rejected(even(2, 0, good), "microbatches: expected 1 to 10000000, got 0");  // 60 million ops, 3 a rank
  expect_rejected(even(2, 4, good, Duration(-1)), "hop: expected 0 ns or more, got -1");
  RankBudget bad = good;
  bad.weight_gradient = Duration(-2);
  expect_rejected(even(2, 4, bad), "rank 0: time: expected 0 ns or more, got -2");
  bad = good;
  bad.kept = 3;
  expect_rejected(even(2, 4, bad), "rank 0: kept: expected 0 to the activation 1, got 3");
  bad = good;
  bad.activation = std::int64_t{1} << 60;
  expect_rejected(even(2, 8, bad), "rank 0: activation: 8 of 1152921504606846976 are more than 2^62");
  bad = good;
  bad.limit = std::numeric_limits<std::int64_t>::max();
  expect_rejected(even(2, 4, bad), "rank 0: limit: expected up to 2^62, got 9223372036854775807");
  bad = good;
  bad.limit = 0;
  expect_rejected(even(2, 4, bad), "rank 0: limit: expected at least one activation, 1, got 0");
  bad = good;
  bad.weight_gradient = std::chrono::hours(24 * 366 * 20);
  expect_rejected(even(2, 4, bad), "their sum is more than 126 years");  // 2 ranks x 4 x 20 years
  ZeroBubbleProblem sliced = even(2, 4, good);
  sliced.shape.slice_lengths = {1, 1};
  expect_rejected(sliced, "slices: expected 1, got 2");
}

}  // namespace
}  // namespace sluice::bench::accuracy
