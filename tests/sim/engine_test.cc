#include "sim/engine/engine.h"

#include <gtest/gtest.h>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/dag_shortest_paths.hpp>
#include <boost/graph/iteration_macros.hpp>
#include <cstdlib>
#include <map>
#include <random>

#include "model/cost/uniform.h"
#include "model/graph/boost_graph.h"
#include "model/graph/lowering.h"
#include "model/schedule/family.h"
#include "model/timeline/metrics.h"
#include "sim/engine/period.h"
#include "tests/support/all_schedules.h"
#include "tests/support/count_allocations.h"
#include "tests/support/golden.h"
#include "tests/support/oracle.h"
#include "tests/support/shapes.h"

namespace sluice::test {
namespace {

// Random times in whole nanoseconds per kind, stage and slice.
class RandomEngineCost : public CostModel {
 public:
  RandomEngineCost(std::uint32_t seed, int hop) : random_(seed), hop_(hop) {}

  std::int64_t nanoseconds(OpKind kind, int stage, int slice) const {
    const auto [found, added] = times_.try_emplace({kind, stage, slice}, 0);
    if (added) found->second = static_cast<std::int64_t>(random_() % 50 + 1);
    return found->second;
  }
  double compute_s(OpKind kind, int stage, const MicrobatchShape&, int slice) const override {
    return static_cast<double>(nanoseconds(kind, stage, slice)) * 1e-9;
  }
  TransferTime transfer(int, int, std::int64_t) const override { return {.latency_s = hop_ * 1e-9}; }

 private:
  mutable std::map<std::tuple<OpKind, int, int>, std::int64_t> times_;
  mutable std::mt19937 random_;
  int hop_;
};

// The start and end of each op in compute vertices.
std::map<std::tuple<OpKind, int, int, int>, std::pair<std::int64_t, std::int64_t>> times_by_op(
    const OpGraph& graph, const Timeline& timeline) {
  std::map<std::tuple<OpKind, int, int, int>, std::pair<std::int64_t, std::int64_t>> times;
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    if (vertex.kind != VertexKind::compute && vertex.kind != VertexKind::joint) continue;
    const std::pair when(timeline.start[v].count(), timeline.end[v].count());
    times[{vertex.op, vertex.stage, vertex.microbatch, vertex.slice}] = when;
    if (vertex.kind == VertexKind::joint) {
      const Vertex& other = graph.joint_partner(vertex);
      times[{other.op, other.stage, other.microbatch, other.slice}] = when;
    }
  }
  return times;
}

TEST(Engine, AgreesWithTheOracleToTheNanosecond) {
  std::uint32_t seed = 1;
  const bool small = test::small_scope();  // the sanitizers' run
  const test::Sizes sizes = small ? test::Sizes{3, 5, 2, 2} : test::Sizes{};
  const int count = test::for_each_schedule(sizes, [&](const Schedule& schedule) {
    SCOPED_TRACE(test::describe(schedule));
    ++seed;
    const RandomEngineCost cost(seed, static_cast<int>(seed % 3) * 7);
    const OpGraph graph = lower(schedule);
    const Timeline timeline = simulate(graph, price(graph, cost));
    test::OracleCosts costs;
    costs.op = [&](const Op& op) { return cost.nanoseconds(op.kind, op.stage, op.slice); };
    costs.hop = static_cast<int>(seed % 3) * 7;
    const test::OracleTimes expected = test::longest_path(schedule, costs);
    ASSERT_FALSE(expected.deadlock);
    const auto times = times_by_op(graph, timeline);
    ASSERT_EQ(std::ssize(times), schedule.num_ops());
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      for (std::size_t i = 0; i < schedule.ops(rank).size(); ++i) {
        const Op& op = schedule.ops(rank)[i];
        const auto found = times.find({op.kind, op.stage, op.microbatch, op.slice});
        ASSERT_NE(found, times.end());
        ASSERT_EQ(found->second, std::pair(expected.start[r][i], expected.end[r][i])) << to_string(op, true);
      }
    }
    const Metrics metrics = measure(graph, timeline);
    EXPECT_EQ(metrics.makespan.count(), expected.makespan());
    EXPECT_EQ(metrics.span.count(), expected.largest_span());
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      EXPECT_EQ(metrics.ranks[rank].busy.count(), expected.busy(rank));
    }
  });
  EXPECT_GT(count, small ? 200 : 1000);
}

TEST(Period, IsTheGrowthOfTheMakespanOfRepeatedLists) {
  std::uint32_t seed = 7;
  test::for_each_schedule({.ranks = 4, .microbatches = 4, .chunks = 2, .slices = 2}, [&](const Schedule& schedule) {
    if (schedule.weight_policy() != WeightPolicy::flush) return;
    SCOPED_TRACE(test::describe(schedule));
    const RandomEngineCost cost(++seed, 3);
    const OpGraph graph = lower(schedule);
    const Duration period = repeated_period(graph, price(graph, cost));
    test::OracleCosts costs;
    costs.op = [&](const Op& op) { return cost.nanoseconds(op.kind, op.stage, op.slice); };
    costs.hop = 3;
    // Growth over a multiple of every cycle length up to 4, after the transient.
    const auto makespan = [&](int times) {
      return test::longest_path(test::repeated(schedule, times), costs).makespan();
    };
    const std::int64_t growth = makespan(36) - makespan(24);
    EXPECT_EQ(period.count(), (growth + 6) / 12);
  });
}

TEST(Period, OfSchedulesWithoutAFlushIsTheWorkPerBatch) {
  // 1F1B without a flush: period m (f + x) for m >= p - 1 (closed form).
  for (const char* name : {"pipedream", "pipedream-2bw"}) {
    for (int p = 1; p <= 6; ++p) {
      for (int m = std::max(1, p - 1); m <= 8; ++m) {
        const Schedule schedule =
            make_schedule(find_family(name), {.ranks = p, .microbatches = m, .batches = batches_for_growth(p, m)});
        const UniformCost cost({.forward = {3}, .input_gradient = {4}, .weight_gradient = {2}}, schedule);
        const OpGraph graph = lower(schedule);
        const BatchGrowth growth = batch_growth(graph, simulate(graph, price(graph, cost)));
        EXPECT_TRUE(growth.constant);
        EXPECT_EQ(growth.period, std::chrono::seconds(9 * m)) << name << " p=" << p << " m=" << m;
      }
    }
  }
}

TEST(Engine, BandwidthOccupiesTheLaneAndLatencyDoesNot) {
  // Two ranks, two microbatches, F takes 1 s, B 2 s. A transfer occupies its lane for 3 s and arrives 10 s later.
  // F0@0 0-1, sent 1-4, arrives 14; F1@0 1-2, sent 4-7, arrives 17. 1f1b on rank 1: F0 14-15, B0 15-17, F1 17-18, B1
  // 18-20. B0 sent 17-20, arrives 30: B0@0 30-32; B1 sent 20-23, arrives 33: B1@0 33-35.
  class Linked : public CostModel {
   public:
    double compute_s(OpKind kind, int, const MicrobatchShape&, int) const override { return kind == OpKind::F ? 1 : 2; }
    TransferTime transfer(int, int, std::int64_t) const override { return {.occupied_s = 3, .latency_s = 10}; }
  };
  const Schedule schedule = make_schedule(find_family("1f1b"), {.ranks = 2, .microbatches = 2});
  const OpGraph graph = lower(schedule);
  const Timeline timeline = simulate(graph, price(graph, Linked{}));
  EXPECT_EQ(measure(graph, timeline).makespan, std::chrono::seconds(35));
}

// The oracle above has ops and transfers only; this test uses the complete lowered graph.
TEST(Engine, EndTimesAreTheLongestPathsOfTheLoweredGraph) {
  using WeightedGraph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property,
                                              boost::property<boost::edge_weight_t, std::int64_t>>;
  test::for_each_schedule({.ranks = 3, .microbatches = 4, .chunks = 2, .slices = 2}, [](const Schedule& schedule) {
    SCOPED_TRACE(test::describe(schedule));
    const OpGraph graph = lower(schedule, {.data_parallel = 2, .gather_parameters = true, .recompute = true});
    std::mt19937 random(7);
    Prices prices;
    for (VertexId v = 0; v < graph.size(); ++v) prices.duration.emplace_back(random() % 50);
    for (std::size_t lane = 0; lane < graph.lanes().size(); ++lane) {
      prices.lane_latency.emplace_back(graph.lanes()[lane].kind == LaneKind::link ? random() % 20 : 0);
    }
    const Timeline timeline = simulate(graph, prices);

    // Edges from a vertex to those that wait for it, and from a start vertex to all. Latency applies only to readers of
    // a transfer: the next transfer of its lane starts when the lane is free.
    const std::size_t beginning = graph.size();
    WeightedGraph waited_for_by(graph.size() + 1);
    const auto duration = duration_map(prices.duration);
    BGL_FORALL_EDGES_T(edge, graph, OpGraph) {
      const VertexId from = target(edge, graph);
      const VertexId to = source(edge, graph);
      const LaneId lane = get(vertex_lane, graph, from);
      const bool order = lane == get(vertex_lane, graph, to);
      const Duration latency = order ? Duration{} : prices.lane_latency[lane];
      add_edge(from, to, (get(duration, from) + latency).count(), waited_for_by);
    }
    BGL_FORALL_VERTICES_T(v, graph, OpGraph) { add_edge(beginning, v, 0, waited_for_by); }
    std::vector<std::int64_t> start(graph.size() + 1);
    dag_shortest_paths(waited_for_by, beginning,
                       boost::distance_map(start.data())
                           .distance_compare(std::greater<>())
                           .distance_inf(std::numeric_limits<std::int64_t>::min()));
    for (VertexId v = 0; v < graph.size(); ++v) {
      ASSERT_EQ(timeline.start[v].count(), start[v]) << graph.name(v);
      ASSERT_EQ(timeline.end[v].count(), start[v] + prices.duration[v].count()) << graph.name(v);
    }
  });
}

// The number of allocations of the engines does not grow with the number of ops.

class LinkedCost : public CostModel {
 public:
  double compute_s(OpKind kind, int stage, const MicrobatchShape&, int) const override {
    return (kind == OpKind::F ? 1e-3 : 2e-3) * (1 + 0.1 * stage);
  }
  TransferTime transfer(int, int, std::int64_t) const override { return {.occupied_s = 1.3e-3}; }
};

std::int64_t allocations_of(int microbatches, Sharing policy) {
  const Schedule schedule = make_schedule(find_family("1f1b"), {.ranks = 4, .microbatches = microbatches});
  const OpGraph graph = lower(schedule);
  Prices prices = price(graph, LinkedCost{});
  if (policy != Sharing::none) {
    prices.sharing.num_resources = 8;
    for (const Lane& lane : graph.lanes()) {
      if (lane.kind != LaneKind::link) continue;
      prices.sharing.links.push_back({.policy = policy, .uses = {{lane.rank, 1}, {4 + lane.peer, 1}}});
    }
  }
  const std::int64_t before = test::allocations();
  const Timeline timeline = simulate(graph, prices);
  return test::allocations() - before;
}

TEST(Allocations, DoNotGrowWithTheNumberOfOps) {
  for (const Sharing policy : {Sharing::none, Sharing::fair, Sharing::queue}) {
    const std::int64_t few = allocations_of(8, policy);
    EXPECT_GT(few, 0);
    EXPECT_EQ(allocations_of(800, policy), few);
  }
}

}  // namespace
}  // namespace sluice::test
