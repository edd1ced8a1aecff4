#include "sim/planner/auto_schedule.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "model/graph/lowering.h"
#include "model/schedule/family.h"
#include "model/schedule/schedule_file.h"
#include "model/to_size.h"
#include "sim/engine/engine.h"
#include "sim/planner/auto_bounds.h"
#include "sim/planner/list_scheduling.h"
#include "sim/planner/order_search.h"
#include "sim/planner/order_times.h"
#include "tests/support/errors.h"
#include "tests/support/exact_search.h"
#include "tests/support/golden.h"
#include "tests/support/oracle.h"

namespace sluice::test {
namespace {

std::vector<int> linear(int p) {
  std::vector<int> out;
  for (int r = 0; r < p; ++r) out.push_back(r);
  return out;
}
std::vector<int> looped(int p, int v) {
  std::vector<int> out;
  for (int s = 0; s < p * v; ++s) out.push_back(s % p);
  return out;
}
std::vector<int> v_shape(int p) {
  std::vector<int> out = linear(p);
  for (int r = p - 1; r >= 0; --r) out.push_back(r);
  return out;
}

// All slices of all stages are equal; a slice holds `until_i` until its I and `until_w` until its W.
PlacedProblem even(const std::vector<int>& rank_of, int m, int k, int f, int b, int w, int until_i, int until_w,
                   std::int64_t limit, int hop = 0) {
  PlacedProblem out;
  out.rank_of = rank_of;
  out.num_ranks = 1 + *std::max_element(rank_of.begin(), rank_of.end());
  out.num_microbatches = m;
  out.shape.slice_lengths.assign(k, 1);
  const std::size_t slices = rank_of.size() * to_size(k);
  out.times.assign(slices, {.forward = Duration(f),
                            .input_gradient = Duration(b),
                            .weight_gradient = Duration(w),
                            .backward = Duration(b + w)});
  out.bytes.assign(slices, {.activations_to_input_gradient = until_i, .activations_to_weight_gradient = until_w});
  out.limit.assign(out.num_ranks, limit);
  out.after.assign(out.num_ranks, Duration{});
  for (std::size_t s = 0; s < rank_of.size(); ++s) {
    const auto apart = [&](std::size_t other) { return other < rank_of.size() && rank_of[other] != rank_of[s]; };
    out.forward_hop.emplace_back(apart(s + 1) ? hop : 0);
    out.backward_hop.emplace_back(apart(s - 1) ? hop : 0);
  }
  return out;
}

AutoResult solve(const PlacedProblem& problem, std::int64_t evaluations, bool families = true) {
  AutoPlacement placement{.name = "only", .problem = problem, .families = {}};
  if (families) placement.families = families_of(problem);
  std::vector<AutoPlacement> placements;
  placements.push_back(std::move(placement));
  return auto_schedule(std::move(placements), {.seconds = 60, .evaluations = evaluations});
}

// Checks that a schedule is complete (its constructor checks that), free of deadlock, within the limits, and has the
// expected makespan, according to the simulator and an independent oracle.
void expect_true(const PlacedProblem& problem, const AutoResult& result) {
  EXPECT_NO_THROW(lower(result.schedule));
  const OpTable table(problem);
  EXPECT_TRUE(keeps_limits(problem, table, orders_of(table, result.schedule)));
  EXPECT_EQ(simulated_makespan(problem, result.schedule), result.makespan);
  EXPECT_LE(result.lower_bound, result.makespan);
}

struct Rng {
  std::mt19937 engine;
  int operator()(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); }
};

// Uneven stages, which also differ in the bytes held until I or W.
PlacedProblem random_problem(Rng& random, const std::vector<int>& rank_of, int m, int k, std::int64_t cap_units) {
  const int release = random(0, 2);  // at W, at I, or some at each
  PlacedProblem problem = even(rank_of, m, k, 1, 1, 1, release == 0 ? 0 : 1, release == 1 ? 0 : 1, kNoLimit,
                               random(0, 3) == 0 ? random(1, 4) : 0);
  const bool alike = random(0, 2) == 0;
  const SliceOpTimes first{.forward = Duration(random(1, 9)),
                           .input_gradient = Duration(random(1, 9)),
                           .weight_gradient = Duration(random(0, 9))};
  for (SliceOpTimes& of : problem.times) {
    of = alike ? first
               : SliceOpTimes{.forward = Duration(random(0, 9)),
                              .input_gradient = Duration(random(0, 9)),
                              .weight_gradient = Duration(random(0, 9))};
    of.backward = of.input_gradient + of.weight_gradient;
  }
  if (cap_units > 0) {
    const std::vector<std::int64_t> least = least_limits(problem);
    for (std::size_t r = 0; r < least.size(); ++r)
      problem.limit[r] = std::max(least[r], cap_units * (release == 2 ? 2 : 1));
  }
  return problem;
}

TEST(OrderTimes, EqualThoseOfTheSimulator) {
  Rng random{std::mt19937(7)};
  int compared = 0;
  for (const Family& family : all_families()) {
    if (family.asynchronous || family.replicas > 1 || family.vocabulary_barriers > 0) continue;
    for (int i = 0; i < 12; ++i) {
      FamilyParams params{.ranks = random(1, 4), .microbatches = random(1, 10)};
      if (family.sliced) params.shape.slice_lengths.assign(random(1, 3), 1);
      if (family.fixed_chunks == 0) params.chunks = random(1, 3);
      std::optional<Schedule> schedule;
      try {
        schedule = make_schedule(family, params);
      } catch (const InputError&) {
        continue;
      }
      if (schedule->has_joint_blocks()) continue;
      PlacedProblem problem = random_problem(random, schedule->routes()[0], params.microbatches, params.slices(), 0);
      problem.blocking = random(0, 2) == 0;
      for (SliceOpTimes& of : problem.times) {
        of.send_forward = Duration(random(0, 5));
        of.send_backward = Duration(random(0, 5));
      }
      // A lane has one latency, that of its transfers.
      const Duration hop(random(0, 6));
      for (std::size_t s = 0; s < problem.rank_of.size(); ++s) {
        const auto apart = [&](std::size_t other) {
          return other < problem.rank_of.size() && problem.rank_of[other] != problem.rank_of[s];
        };
        problem.forward_hop[s] = apart(s + 1) ? hop : Duration{};
        problem.backward_hop[s] = apart(s - 1) ? hop : Duration{};
      }
      for (Duration& after : problem.after) after = Duration(random(0, 9));
      const OpTable table(problem);
      const AutoBounds bounds = auto_bounds(problem, table);
      OrderTimes times(problem, table, bounds.tail);
      const Orders orders = orders_of(table, *schedule);
      const Duration simulated = simulated_makespan(problem, schedule_of(problem, orders));
      SCOPED_TRACE(fmt::format("{} p={} m={} v={} k={}", family.name, params.ranks, params.microbatches, params.chunks,
                               params.slices()));
      EXPECT_EQ(times.run(orders), simulated.count());
      // Renumbering microbatches slows down nothing, and tails and bound are valid.
      EXPECT_LE(simulated, simulated_makespan(problem, *schedule));
      EXPECT_LE(bounds.makespan, simulated.count());
      EXPECT_EQ(times.run(orders, simulated.count()), simulated.count());
      EXPECT_EQ(times.run(orders, simulated.count() - 1), kNever);
      ++compared;
    }
  }
  EXPECT_GT(compared, 150);
}

// A search walks along the ops of a path that follow each other on one rank, and must end where the path begins, also
// after ops that take no time.
TEST(OrderTimes, PathsBeginWithAnOpThatFollowsNone) {
  Rng random{std::mt19937(8)};
  int instant = 0;  // paths that begin behind ops that take no time
  for (int i = 0; i < 10'000; ++i) {
    const int m = random(1, 5);
    const PlacedProblem problem = random_problem(random, random(0, 1) == 0 ? linear(3) : v_shape(2), m, 1, 0);
    const OpTable table(problem);
    OrderTimes times(problem, table);
    const Orders orders = sequential_orders(problem);
    ASSERT_NE(times.run(orders), kNever);
    std::vector<OrderTimes::Step> path;
    times.critical_path(orders, path);
    ASSERT_FALSE(path.empty());
    EXPECT_FALSE(path.back().follows) << i;
    instant += path.back().index > 0 ? 1 : 0;
    for (std::size_t at = 0; at + 1 < path.size(); ++at) {
      if (!path[at].follows) continue;
      EXPECT_EQ(path[at + 1].rank, path[at].rank);
      EXPECT_EQ(path[at + 1].index, path[at].index - 1);
    }
  }
  EXPECT_GT(instant, 5);
}

TEST(PreemptiveBound, OfSmallMachines) {
  EXPECT_EQ(preemptive_bound({}), 0);
  EXPECT_EQ(preemptive_bound({{.head = 2, .duration = 3, .tail = 4}}), 9);
  // Carlier's subset bound: heads 0 and 1, 4 + 2 of work. The long tail preempts at 1 and ends at 3: 3 + 7 = 10;
  // without preemption it could not start before 4.
  EXPECT_EQ(preemptive_bound({{.head = 0, .duration = 4, .tail = 0}, {.head = 1, .duration = 2, .tail = 7}}), 10);
}

// spec/schedules.md, "Bounds", found by exhaustive search: p = m = 4, all costs 1, held until W.
TEST(AutoSchedule, FindsOptimaUnderCapsUpToTheNumberOfRanks) {
  const std::vector<std::pair<int, int>> optima = {{1, 36}, {2, 21}, {3, 18}, {4, 15}};
  for (const auto& [cap, makespan] : optima) {
    SCOPED_TRACE(cap);
    const PlacedProblem problem = even(linear(4), 4, 1, 1, 1, 1, 0, 1, cap);
    const AutoResult result = solve(problem, 200'000);
    EXPECT_EQ(result.makespan.count(), makespan);
    expect_true(problem, result);
  }
}

// From the same source: p = 3, m = 4, costs 5/6/4, at most p activations: 74 held until W, 72 if I releases them.
TEST(AutoSchedule, IsFasterIfTheInputGradientReleasesMemory) {
  EXPECT_EQ(solve(even(linear(3), 4, 1, 5, 6, 4, 0, 1, 3), 200'000).makespan.count(), 74);
  EXPECT_EQ(solve(even(linear(3), 4, 1, 5, 6, 4, 1, 0, 3), 200'000).makespan.count(), 72);
}

// The exact search itself, on the same values, without a known bound.
TEST(ExactSearch, FindsThePublishedOptima) {
  const std::vector<std::pair<int, int>> optima = {{1, 36}, {2, 21}, {3, 18}, {4, 15}};
  for (const auto& [cap, makespan] : optima) {
    EXPECT_EQ(test::least_makespan(even(linear(4), 4, 1, 1, 1, 1, 0, 1, cap), 1000, 5'000'000), makespan) << cap;
  }
  EXPECT_EQ(test::least_makespan(even(linear(3), 4, 1, 5, 6, 4, 0, 1, 3), 1000, 5'000'000), 74);
  EXPECT_EQ(test::least_makespan(even(linear(3), 4, 1, 5, 6, 4, 1, 0, 3), 1000, 5'000'000), 72);
  // One rank: its work alone, 3 x 15.
  EXPECT_EQ(test::least_makespan(even(linear(1), 3, 1, 5, 6, 4, 0, 1, 1), 1000, 100'000), 45);
}

struct Tally {
  int solved = 0;
  int optimal = 0;
  int tight = 0;  // bound equal to the optimum
  int left = 0;   // too large for the exact search
};

void compare_with_exact(Rng& random, const std::vector<int>& rank_of, int m, int k, Tally& tally, std::int64_t moves) {
  const int stages = static_cast<int>(rank_of.size());
  const int ranks = 1 + *std::max_element(rank_of.begin(), rank_of.end());
  const int one = k * stages / ranks;  // units per microbatch
  const PlacedProblem problem = random_problem(random, rank_of, m, k, random(0, 4) == 0 ? 0 : random(one, one * m));
  const AutoResult result = solve(problem, moves, random(0, 1) == 0);
  expect_true(problem, result);
  const std::optional<std::int64_t> least = test::least_makespan(problem, result.makespan.count(), 200'000);
  if (!least) {
    ++tally.left;
    return;
  }
  ++tally.solved;
  tally.optimal += *least == result.makespan.count() ? 1 : 0;
  tally.tight += *least == result.lower_bound.count() ? 1 : 0;
  ASSERT_LE(result.lower_bound.count(), *least) << "the bound lies";
}

void expect_mostly_optimal(const char* what, const Tally& tally) {
  fmt::print("{}: {} of {} optimal, bound tight in {}; {} too large for the exact search\n", what, tally.optimal,
             tally.solved, tally.tight, tally.left);
  EXPECT_GE(tally.optimal, 0.95 * tally.solved);
  EXPECT_GT(tally.solved, 2 * tally.left);
}

TEST(AutoSchedule, ReachesExactOptimaOfLinearPipelines) {
  Rng random{std::mt19937(1)};
  Tally tally;
  const int cases = test::small_scope() ? 60 : 2000;
  for (int i = 0; i < cases && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    compare_with_exact(random, linear(random(1, 3)), random(1, 4), 1, tally, 20'000);
  }
  expect_mostly_optimal("linear", tally);
}

TEST(AutoSchedule, ReachesExactOptimaOfTwoChunks) {
  Rng random{std::mt19937(2)};
  Tally tally;
  const int cases = test::small_scope() ? 100 : 600;
  for (int i = 0; i < cases && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    const int p = random(1, 3);
    compare_with_exact(random, random(0, 1) == 0 ? v_shape(p) : looped(p, 2), random(1, p == 3 ? 3 : 4), 1, tally,
                       50'000);
  }
  expect_mostly_optimal("two chunks", tally);
}

TEST(AutoSchedule, ReachesExactOptimaOfSlicedPipelines) {
  Rng random{std::mt19937(3)};
  Tally tally;
  const int cases = test::small_scope() ? 40 : 240;
  for (int i = 0; i < cases && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    compare_with_exact(random, linear(random(1, 3)), random(1, 3), random(2, 3), tally, 50'000);
  }
  expect_mostly_optimal("sliced", tally);
}

// Optima that OR-tools' CP-SAT 9.15 proved (no-overlap per rank, cumulative memory). Limits are in stages, held until
// W.
TEST(AutoSchedule, IsOptimalWhereAConstraintSolverFinishes) {
  struct Solved {
    std::vector<int> rank_of;
    int m, f, b, w, hop, limit, optimum;
  };
  const std::vector<Solved> cases = {{linear(3), 4, 5, 2, 7, 2, 1, 144},    {linear(3), 6, 2, 6, 1, 1, 2, 96},
                                     {linear(3), 4, 4, 6, 8, 3, 1, 200},    {v_shape(2), 8, 3, 2, 6, 2, 4, 184},
                                     {v_shape(3), 4, 8, 7, 8, 0, 6, 200},   {looped(2, 2), 4, 6, 6, 7, 2, 2, 229},
                                     {looped(3, 2), 6, 3, 6, 2, 2, 6, 168}, {looped(3, 2), 6, 7, 9, 2, 0, 3, 368},
                                     {looped(4, 2), 6, 3, 4, 2, 2, 6, 173}, {looped(4, 2), 6, 4, 9, 5, 1, 5, 309}};
  int optimal = 0;
  for (const Solved& of : cases) {
    SCOPED_TRACE(of.optimum);
    const PlacedProblem problem = even(of.rank_of, of.m, 1, of.f, of.b, of.w, 0, 1, of.limit, of.hop);
    const AutoResult result = solve(problem, 50'000);
    expect_true(problem, result);
    EXPECT_LE(result.lower_bound.count(), of.optimum);
    EXPECT_GE(result.lower_bound.count(), 0.99 * of.optimum);
    EXPECT_GE(result.makespan.count(), of.optimum);
    EXPECT_LE(result.makespan.count(), 1.01 * of.optimum);
    optimal += result.makespan.count() == of.optimum ? 1 : 0;
  }
  EXPECT_GE(optimal, 9);
}

TEST(AutoSchedule, IsNeverSlowerThanAFamilyUnderTheSameCap) {
  Rng random{std::mt19937(4)};
  const int cases = test::small_scope() ? 20 : 150;
  int families = 0;
  for (int i = 0; i < cases; ++i) {
    SCOPED_TRACE(i);
    const int p = random(1, 8);
    const int shape = random(0, 3);
    const std::vector<int> rank_of = shape == 0 ? v_shape(p) : shape == 1 ? looped(p, random(2, 3)) : linear(p);
    const int chunks = static_cast<int>(rank_of.size()) / p;
    const int k = shape == 3 ? random(1, 4) : 1;
    const PlacedProblem problem = random_problem(random, rank_of, random(1, 24), k,
                                                 random(0, 3) == 0 ? 0 : random(chunks * k, 2 * p * chunks * k));
    const OpTable table(problem);
    const AutoResult result = solve(problem, 500);
    expect_true(problem, result);
    for (const auto& [name, schedule] : families_of(problem)) {
      if (!keeps_limits(problem, table, orders_of(table, schedule))) continue;
      EXPECT_LE(result.makespan, simulated_makespan(problem, schedule)) << name;
      EXPECT_LE(result.lower_bound, simulated_makespan(problem, schedule)) << name;
      ++families;
    }
  }
  EXPECT_GT(families, cases / 2);
}

// With latencies, V placement and caps, against the independent oracle of the tests.
TEST(AutoSchedule, TimesEqualThoseOfTheOracle) {
  for (const std::vector<int>& rank_of : {linear(4), v_shape(4), looped(4, 2)}) {
    const PlacedProblem problem = even(rank_of, 8, 1, 10, 12, 8, 0, 1, 2 * std::ssize(rank_of) / 4 + 1, 1);
    const AutoResult result = solve(problem, 5000);
    EXPECT_EQ(test::longest_path(result.schedule, test::uniform(10, 12, 8, 1)).makespan(), result.makespan.count());
    for (int rank = 0; rank < 4; ++rank) EXPECT_LE(test::peak_in_flight(result.schedule, rank), problem.limit[0]);
  }
}

// f = b = w, no cap, a linear placement: m(f + b + w) + (p - 1)f is optimal (spec/schedules.md).
TEST(AutoSchedule, ReachesTheBoundOfLinearPlacementsWithoutACap) {
  const PlacedProblem problem = even(linear(8), 32, 1, 10, 10, 10, 0, 1, kNoLimit);
  const AutoResult result = solve(problem, 100'000);
  EXPECT_EQ(result.makespan.count(), 32 * 30 + 7 * 10);
  EXPECT_EQ(result.lower_bound, result.makespan);
}

TEST(AutoSchedule, UsesWholeBackwardsWhereSplittingCosts) {
  // I and W take 6 + 6, a B 8. On two ranks, filling idle time with Ws saves less than they cost.
  PlacedProblem problem = even(linear(2), 6, 1, 4, 6, 6, 0, 1, kNoLimit);
  for (SliceOpTimes& of : problem.times) of.backward = Duration(8);
  const AutoResult result = solve(problem, 50'000);
  expect_true(problem, result);
  // 1F1B: (m + p - 1)(f + x) = 7 * 12.
  EXPECT_LE(result.makespan.count(), 84);
  int whole = 0;
  for (int rank = 0; rank < 2; ++rank) {
    for (const Op& op : result.schedule.ops(rank)) whole += op.kind == OpKind::B ? 1 : 0;
  }
  EXPECT_GT(whole, 6);
  problem.may_split = false;
  const AutoResult unsplit = solve(problem, 5000);
  EXPECT_FALSE(unsplit.schedule.split_backward());
  EXPECT_EQ(unsplit.makespan.count(), 84);
}

TEST(AutoSchedule, DependsOnlyOnSeedAndMoves) {
  const PlacedProblem problem = even(v_shape(4), 8, 1, 5, 6, 4, 0, 1, 5, 1);
  const std::string first = schedule_to_json(solve(problem, 20'000).schedule);
  EXPECT_EQ(first, schedule_to_json(solve(problem, 20'000).schedule));
}

TEST(AutoSchedule, SurvivesARoundTripThroughAScheduleFile) {
  const PlacedProblem problem = even(v_shape(3), 6, 1, 5, 6, 4, 0, 1, 4);
  const AutoResult result = solve(problem, 5000);
  const Schedule again = schedule_from_json(schedule_to_json(result.schedule), "again");
  EXPECT_EQ(simulated_makespan(problem, again), result.makespan);
}

TEST(AutoSchedule, ReportsThatNoScheduleFits) {
  // Two chunks of one microbatch are held before its first gradient: 2 units, the limit is 1.
  const PlacedProblem problem = even(v_shape(3), 6, 1, 5, 6, 4, 0, 1, 1);
  EXPECT_EQ(test::error_from<DoesNotFit>([&] { solve(problem, 100); }),
            "automatic schedule: rank 0: one microbatch needs 2 of memory, the limit is 1");
  PlacedProblem enough = problem;
  enough.limit.assign(3, 2);
  expect_true(enough, solve(enough, 100));
}

TEST(AutoSchedule, RejectsInconsistentSizes) {
  PlacedProblem problem = even(linear(2), 2, 1, 1, 1, 1, 0, 1, kNoLimit);
  problem.after.pop_back();
  EXPECT_THROW(solve(problem, 1, false), InputError);
  problem = even(linear(2), 2, 1, 1, 1, 1, 0, 1, kNoLimit);
  problem.times[0].forward = Duration(-1);
  EXPECT_THROW(solve(problem, 1, false), InputError);
}

}  // namespace
}  // namespace sluice::test
