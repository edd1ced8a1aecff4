#include "model/timeline/causes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <numeric>
#include <random>

#include "model/graph/lowering.h"
#include "model/timeline/critical_path.h"
#include "model/timeline/metrics.h"
#include "tests/support/all_schedules.h"
#include "tests/support/golden.h"
#include "tests/support/shapes.h"
#include "tests/support/simulated.h"

namespace sluice::test {
namespace {

// Everything takes time: ops, recomputation, transfers and their latency, collectives and steps.
class BusyCost : public CostModel {
 public:
  explicit BusyCost(std::uint32_t seed) : random_(seed) {}

  double compute_s(OpKind kind, int stage, const MicrobatchShape&, int slice) const override {
    return drawn(0, static_cast<int>(kind), stage, slice, 60);
  }
  double recompute_s(int stage, const MicrobatchShape&, int slice) const override {
    return drawn(1, 0, stage, slice, 20);
  }
  TransferTime transfer(int from, int to, std::int64_t) const override {
    return {.occupied_s = drawn(2, from, to, 0, 20), .latency_s = drawn(3, from, to, 0, 20)};
  }
  double collective_s(CollectiveKind kind, int stage, std::int64_t) const override {
    return drawn(4, static_cast<int>(kind), stage, 0, 90);
  }
  double optimizer_s(int stage) const override { return drawn(5, 0, stage, 0, 30); }

 private:
  double drawn(int a, int b, int c, int d, int most) const {
    const auto [found, added] = times_.try_emplace({a, b, c, d}, 0);
    if (added) found->second = static_cast<double>(random_() % static_cast<unsigned>(most));
    return found->second * 1e-9;
  }
  mutable std::map<std::array<int, 4>, double> times_;
  mutable std::mt19937 random_;
};

LoweringOptions drawn_options(std::uint32_t seed, const Schedule& schedule) {
  const bool flush = schedule.weight_policy() == WeightPolicy::flush;
  return {.data_parallel = seed % 2 == 0 ? 2 : 1,
          .overlap_grad_reduce = seed % 3 == 0,
          .gather_parameters = seed % 4 == 0,
          .tied_embedding = seed % 5 == 0 && schedule.weight_policy() != WeightPolicy::stashed,
          .global_norm = flush && seed % 3 == 1,
          .recompute = seed % 7 == 0};
}

const test::Sizes& sizes() {
  static const bool small = test::small_scope();  // the sanitizers' run
  static const test::Sizes chosen = small ? test::Sizes{3, 4, 2, 2} : test::Sizes{};
  return chosen;
}

// Idle time of each rank, from its compute lane only.
std::vector<std::vector<std::pair<Duration, Duration>>> gaps(const OpGraph& graph, const Timeline& timeline) {
  std::vector<std::vector<std::pair<Duration, Duration>>> out(static_cast<std::size_t>(graph.schedule().num_ranks()));
  const Duration makespan = *std::max_element(timeline.end.begin(), timeline.end.end());
  for (int rank = 0; rank < graph.schedule().num_ranks(); ++rank) {
    Duration free{0};
    for (VertexId v = 0; v < graph.size(); ++v) {
      if (graph[v].lane != graph.compute_lane(rank)) continue;
      if (timeline.start[v] > free) out[rank].emplace_back(free, timeline.start[v]);
      free = timeline.end[v];
    }
    if (makespan > free) out[rank].emplace_back(free, makespan);
  }
  return out;
}

TEST(Causes, CoverIdleTimeExactlyForEveryFamily) {
  std::uint32_t seed = 0;
  const int count = test::for_each_schedule(sizes(), [&](const Schedule& schedule) {
    SCOPED_TRACE(test::describe(schedule));
    ++seed;
    const OpGraph graph = lower(schedule, drawn_options(seed, schedule));
    const Timeline timeline = simulate(graph, price(graph, BusyCost(seed)));
    const Metrics metrics = measure(graph, timeline);
    const std::vector<IdleByCause> sums = idle_by_cause(graph, timeline);
    const std::vector<IdleInterval> intervals = idle_intervals(graph, timeline);
    const auto expected = gaps(graph, timeline);

    std::vector<IdleByCause> from_intervals(sums.size(), IdleByCause{});
    std::size_t at = 0;
    for (std::size_t rank = 0; rank < sums.size(); ++rank) {
      const Duration total = std::accumulate(sums[rank].begin(), sums[rank].end(), Duration{0});
      ASSERT_EQ(total, metrics.makespan - metrics.ranks[rank].busy);
      // A predicted op never starts later than it can.
      ASSERT_EQ(sums[rank][static_cast<std::size_t>(IdleCause::other)], Duration{0});
      // The intervals tile the gaps of the lane.
      for (const auto& [begin, end] : expected[rank]) {
        Duration covered = begin;
        while (covered < end) {
          ASSERT_LT(at, intervals.size());
          const IdleInterval& interval = intervals[at++];
          ASSERT_EQ(static_cast<std::size_t>(interval.rank), rank);
          ASSERT_EQ(interval.start, covered);
          ASSERT_GT(interval.end, interval.start);
          covered = interval.end;
          from_intervals[rank][static_cast<std::size_t>(interval.cause)] += interval.end - interval.start;
          if (interval.cause == IdleCause::link) {
            ASSERT_EQ(graph[interval.waits_for].kind, VertexKind::transfer);
            ASSERT_EQ(graph.lanes()[graph[interval.waits_for].lane].peer, interval.rank);
          }
          ASSERT_NE(interval.from_rank, interval.rank);
        }
        ASSERT_EQ(covered, end);
      }
    }
    ASSERT_EQ(at, intervals.size());
    ASSERT_EQ(from_intervals, sums);
  });
  EXPECT_GT(count, 300);
}

IdleByCause total_idle(const test::Simulated& run) {
  IdleByCause sum{};
  for (const IdleByCause& rank : idle_by_cause(run.graph, run.timeline)) {
    for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += rank[c];
  }
  return sum;
}

IdleByCause in_seconds(int warm_up, int drain, int sender, int slice, int link, int optimizer) {
  return {std::chrono::seconds(warm_up),
          std::chrono::seconds(drain),
          std::chrono::seconds(sender),
          std::chrono::seconds(slice),
          std::chrono::seconds(link),
          std::chrono::seconds(optimizer),
          {}};
}

TEST(Causes, OneForwardOneBackwardFillsAndDrains) {
  // p = 4, m = 8, f = 1, x = 2: rank r waits r for its first F, runs 4 - r of them until 4, and waits for its first B,
  // which comes to it at 4 + 2 (3 - r): r + 2 (3 - r) = 6 - r in all. Each rank idles 33 - 24 = 9.
  const test::Simulated run = test::simulated("1f1b", {.ranks = 4, .microbatches = 8});
  const auto ranks = idle_by_cause(run.graph, run.timeline);
  for (int r = 0; r < 4; ++r) {
    IdleByCause expected{};
    expected[static_cast<std::size_t>(IdleCause::warm_up)] = std::chrono::seconds(6 - r);
    expected[static_cast<std::size_t>(IdleCause::drain)] = std::chrono::seconds(3 + r);
    EXPECT_EQ(ranks[r], expected) << "rank " << r;
  }
}

TEST(Causes, ASlowStageIsTheSenderForOthers) {
  // Two ranks, m = 4, f = x/2 = 1 on rank 0 and 3 (f), 6 (x) on rank 1. Rank 0: F0 0-1, F1 1-2, then it waits for B0,
  // which rank 1 ends at 1+3+6 = 10, and so every 9 s: B0 10-12, F2 12-13, wait to 19, B1 19-21, F3 21-22, wait to 28,
  // B2 28-30, wait to 37, B3 37-39. Idle 2-10 warm-up, 13-19 and 22-28 sender: 22-28 comes after the last F: drain.
  test::Simulated run =
      test::simulated(make_schedule(find_family("1f1b"), {.ranks = 2, .microbatches = 4}), "f=1,b=1,w=1");
  UniformTimes times = parse_uniform("f=1,b=1,w=1");
  times.stage_weights = {1, 3};
  run.timeline = simulate(run.graph, price(run.graph, UniformCost(times, *run.schedule)));
  const auto ranks = idle_by_cause(run.graph, run.timeline);
  EXPECT_EQ(ranks[0], in_seconds(8, 6 + 7, 6, 0, 0, 0));
  // Rank 1: waits for F0 until 1, is never idle again until it ends at 37; then 2 s of drain.
  EXPECT_EQ(ranks[1], in_seconds(1, 2, 0, 0, 0, 0));
}

TEST(Causes, DistinguishTheLinkFromTheSender) {
  // gpipe on two ranks, m = 1, latency 5: rank 1 waits 1 s for F0 and 5 for its transfer; rank 0 is idle while
  // rank 1 works (f + x = 3: warm-up, as it has had no backward) and 5 for the gradient; at last x = 2 of drain on 1.
  const test::Simulated run = test::simulated("gpipe", {.ranks = 2, .microbatches = 1}, "f=1,b=1,w=1,comm=5");
  const auto ranks = idle_by_cause(run.graph, run.timeline);
  // Rank 0: F 0-1; B 1: F arrives 6, F 6-7, B 7-9, arrives 14: idle 1-14, of which 9-14 on the way. End 16.
  EXPECT_EQ(ranks[0], in_seconds(8, 0, 0, 0, 5, 0));
  // Rank 1: 0-1 for the sender, 1-6 on the way; idle 9-16 at the end.
  EXPECT_EQ(ranks[1], in_seconds(1, 7, 0, 0, 5, 0));
  const auto intervals = idle_intervals(run.graph, run.timeline);
  EXPECT_EQ(run.graph.name(intervals[1].waits_for), "send B(stage 1, mb 0) 1->0");
  EXPECT_EQ(intervals[1].from_rank, 1);
  EXPECT_EQ(run.graph.name(intervals[0].next), "B(stage 0, mb 0)");
  EXPECT_EQ(run.graph.name(intervals[0].waits_for), "B(stage 1, mb 0)");
}

TEST(Causes, UnevenSlicesMakeARankWaitForASlice) {
  // terapipe, two ranks, one microbatch, slices that take 1 and 3: rank 0 F 0-1, 1-4; rank 1 F0 1-2, then waits for
  // the second slice until 4, F1 4-7. Backward in reverse, 2 and 6: rank 1 B1 7-13, B0 13-15; rank 0 B1 13-19 and B0
  // 19-21: it waits 4-13 (warm-up). Rank 1 waits 0-1 (warm-up), 2-4 (slice), 15-21 (drain).
  FamilyParams params{.ranks = 2, .microbatches = 1};
  params.shape.slice_lengths = {1, 1};
  const test::Simulated run = test::simulated("terapipe", params, "f=1:3,b=1:3,w=1:3");
  const auto ranks = idle_by_cause(run.graph, run.timeline);
  EXPECT_EQ(ranks[0], in_seconds(9, 0, 0, 0, 0, 0));
  EXPECT_EQ(ranks[1], in_seconds(1, 6, 0, 2, 0, 0));
}

TEST(Causes, TimeAfterTheLastOpIsTheOptimizers) {
  // 1f1b on two ranks, m = 1: F 0-1 and 1-2, B 2-4 and 4-6. The norm over both ranks takes 10, 6-16; the steps 1.
  class Stepping : public UniformCost {
   public:
    using UniformCost::UniformCost;
    double collective_s(CollectiveKind, int, std::int64_t) const override { return 10; }
    double optimizer_s(int) const override { return 1; }
  };
  test::Simulated run = test::simulated("1f1b", {.ranks = 2, .microbatches = 1}, "f=1,b=1,w=1", {.global_norm = true});
  run.timeline = simulate(run.graph, price(run.graph, Stepping(parse_uniform("f=1,b=1,w=1"), *run.schedule)));
  // Rank 0: idle 1-4 (warm-up), 6-16 (norm). Rank 1: 0-1 (warm-up), 4-6 (drain), 6-16.
  EXPECT_EQ(total_idle(run), in_seconds(3 + 1, 2, 0, 0, 0, 20));
  const auto intervals = idle_intervals(run.graph, run.timeline);
  EXPECT_EQ(run.graph.name(intervals[1].waits_for), "global norm(step 0)");
}

TEST(Causes, ALateStartOfAMeasuredOpHasNoOtherCause) {
  test::Simulated run = test::simulated("1f1b", {.ranks = 1, .microbatches = 1});
  // F 0-1, B 1-3: as if the host had launched the B half a second late.
  run.timeline.start[1] += std::chrono::milliseconds(500);
  run.timeline.end[1] += std::chrono::milliseconds(500);
  run.timeline.start[2] = run.timeline.end[2] = run.timeline.end[1];  // the step
  IdleByCause expected{};
  expected[static_cast<std::size_t>(IdleCause::other)] = std::chrono::milliseconds(500);
  EXPECT_EQ(total_idle(run), expected);
}

TEST(CriticalPath, AddsUpToTheMakespanAndHasNoSlack) {
  std::uint32_t seed = 0;
  test::for_each_schedule(sizes(), [&](const Schedule& schedule) {
    SCOPED_TRACE(test::describe(schedule));
    ++seed;
    const OpGraph graph = lower(schedule, drawn_options(seed, schedule));
    const Timeline timeline = simulate(graph, price(graph, BusyCost(seed)));
    const CriticalPath path = critical_path(graph, timeline);
    const Duration makespan = *std::max_element(timeline.end.begin(), timeline.end.end());
    ASSERT_EQ(path.compute + path.transfer + path.latency + path.collective + path.optimizer, makespan);
    ASSERT_EQ(path.idle, Duration{0});
    const std::vector<Duration> free = slack(graph, timeline);
    for (std::size_t i = 0; i < path.vertices.size(); ++i) {
      ASSERT_EQ(free[path.vertices[i]], Duration{0});
      if (i == 0) continue;
      const auto needs = graph.needs(path.vertices[i]);
      ASSERT_NE(std::find(needs.begin(), needs.end(), path.vertices[i - 1]), needs.end());
    }
    ASSERT_EQ(timeline.start[path.vertices.front()], Duration{0});
    ASSERT_EQ(timeline.end[path.vertices.back()], makespan);
  });
}

TEST(CriticalPath, CountsTheQueueForASharedLinkAsTransfer) {
  // 1f1b on four ranks, transfers of 5 s, and all links through one queue: the path still adds up, without idle time.
  test::Simulated run = test::simulated("1f1b", {.ranks = 4, .microbatches = 8});
  Prices prices = price(run.graph, UniformCost(parse_uniform("f=1,b=1,w=1"), *run.schedule));
  for (VertexId v = 0; v < run.graph.size(); ++v) {
    if (run.graph[v].kind == VertexKind::transfer) prices.duration[v] = std::chrono::seconds(5);
  }
  prices.sharing.num_resources = 1;
  prices.sharing.links.assign(run.graph.lanes().size() - 8,
                              SharedLink{.policy = Sharing::queue, .uses = {{.resource = 0, .share = 1}}});
  run.timeline = simulate(run.graph, prices);
  const CriticalPath path = critical_path(run.graph, run.timeline);
  const Duration makespan = *std::max_element(run.timeline.end.begin(), run.timeline.end.end());
  EXPECT_EQ(path.compute + path.transfer + path.latency, makespan);
  // 48 transfers of 5 s one after another.
  EXPECT_GE(makespan, std::chrono::seconds(240));
  // The waiting ranks know which ranks they wait for: the sums are exact here, too.
  const Metrics metrics = measure(run.graph, run.timeline);
  const auto idle = idle_by_cause(run.graph, run.timeline);
  for (std::size_t r = 0; r < idle.size(); ++r) {
    EXPECT_EQ(std::accumulate(idle[r].begin(), idle[r].end(), Duration{0}), makespan - metrics.ranks[r].busy);
  }
}

TEST(CriticalPath, GoesThroughTheSlowestLink) {
  // gpipe, two ranks, m = 1, as above: F 1, on the way 5, F 1, B 2, on the way 5, B 2: 16.
  const test::Simulated run = test::simulated("gpipe", {.ranks = 2, .microbatches = 1}, "f=1,b=1,w=1,comm=5");
  const CriticalPath path = critical_path(run.graph, run.timeline);
  EXPECT_EQ(path.compute, std::chrono::seconds(6));
  EXPECT_EQ(path.latency, std::chrono::seconds(10));
  std::vector<std::string> names;
  for (const VertexId v : path.vertices) names.push_back(run.graph.name(v));
  EXPECT_EQ(names, (std::vector<std::string>{"F(stage 0, mb 0)", "send F(stage 0, mb 0) 0->1", "F(stage 1, mb 0)",
                                             "B(stage 1, mb 0)", "send B(stage 1, mb 0) 1->0", "B(stage 0, mb 0)"}));
}

// Slack by experiment: with `slack` more a vertex does not change the makespan, with another nanosecond it does.
TEST(Slack, IsThePossibleDelayOfAnOp) {
  std::uint32_t seed = 0;
  test::for_each_schedule({3, 4, 2, 2}, [&](const Schedule& schedule) {
    if (++seed % 5 != 0) return;  // a sample: each vertex is simulated twice
    SCOPED_TRACE(test::describe(schedule));
    const OpGraph graph = lower(schedule, drawn_options(seed, schedule));
    Prices prices = price(graph, BusyCost(seed));
    const Timeline timeline = simulate(graph, prices);
    const Duration makespan = *std::max_element(timeline.end.begin(), timeline.end.end());
    const std::vector<Duration> free = slack(graph, timeline);
    const auto with = [&](VertexId v, Duration more) {
      prices.duration[v] += more;
      const Timeline later = simulate(graph, prices);
      prices.duration[v] -= more;
      return *std::max_element(later.end.begin(), later.end.end());
    };
    for (VertexId v = 0; v < graph.size(); ++v) {
      ASSERT_EQ(with(v, free[v]), makespan) << graph.name(v);
      ASSERT_EQ(with(v, free[v] + Duration{1}), makespan + Duration{1}) << graph.name(v);
    }
  });
}

}  // namespace
}  // namespace sluice::test
