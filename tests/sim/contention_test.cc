#include "sim/engine/contention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "model/graph/lowering.h"
#include "model/scenario/setup.h"
#include "sim/engine/engine.h"
#include "sim/engine/period.h"
#include "sim/engine/shared_links.h"
#include "tests/support/all_schedules.h"
#include "tests/support/golden.h"
#include "tests/support/oracle.h"
#include "tests/support/shapes.h"

namespace sluice::test {
namespace {

using std::chrono::nanoseconds;

// Random whole nanoseconds per kind, stage and slice, collective, step, link and latency.
class RandomCost : public CostModel {
 public:
  explicit RandomCost(std::uint32_t seed) : random_(seed) {}

  double compute_s(OpKind kind, int stage, const MicrobatchShape&, int slice) const override {
    return draw(static_cast<int>(kind), stage, slice, 1, 50);
  }
  double recompute_s(int stage, const MicrobatchShape&, int slice) const override {
    return draw(10, stage, slice, 0, 20);
  }
  TransferTime transfer(int from, int to, std::int64_t) const override {
    return {.occupied_s = draw(11, from, to, 0, 40), .latency_s = draw(12, from, to, 0, 9)};
  }
  double collective_s(CollectiveKind kind, int stage, std::int64_t) const override {
    return draw(13, static_cast<int>(kind), stage, 0, 30);
  }
  double optimizer_s(int stage) const override { return draw(14, stage, 0, 1, 9); }

 private:
  double draw(int what, int a, int b, int low, int high) const {
    const auto [found, added] = times_.try_emplace({what, a, b}, 0);
    if (added) found->second = low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1));
    return found->second * 1e-9;
  }
  mutable std::map<std::tuple<int, int, int>, int> times_;
  mutable std::mt19937 random_;
};

int num_links(const OpGraph& graph) {
  return static_cast<int>(graph.lanes().size()) - 2 * graph.schedule().num_ranks();
}

SharedLink shared(Sharing policy, std::vector<ResourceUse> uses) { return {.policy = policy, .uses = std::move(uses)}; }

// All links share one resource with enough capacity.
LinkSharing wide(const OpGraph& graph) {
  const int links = num_links(graph);
  const double share = 1.0 / std::max(1, links);
  return {.num_resources = 1,
          .links = std::vector<SharedLink>(
              static_cast<std::size_t>(links),
              {.policy = Sharing::fair, .speed = share, .wire_fraction = 0.7, .uses = {{0, share}}})};
}

// A resource for each link.
LinkSharing apart(const OpGraph& graph, Sharing policy) {
  LinkSharing sharing{.num_resources = num_links(graph)};
  for (int i = 0; i < sharing.num_resources; ++i) {
    sharing.links.push_back(shared(policy, {{i, 1}}));
    sharing.links.back().wire_fraction = i % 2 == 0 ? 1 : 0.31;
  }
  return sharing;
}

// One port per rank and direction, as with one network card per GPU.
LinkSharing ports(const OpGraph& graph, Sharing policy) {
  const int ranks = graph.schedule().num_ranks();
  LinkSharing sharing{.num_resources = 2 * ranks};
  for (const Lane& lane : graph.lanes()) {
    if (lane.kind != LaneKind::link) continue;
    sharing.links.push_back(shared(policy, {{lane.rank, 1}, {ranks + lane.peer, 1}}));
    sharing.links.back().wire_fraction = lane.rank % 2 == 0 ? 1 : 0.8;
  }
  return sharing;
}

LoweringOptions options_for(const Schedule& schedule, std::uint32_t seed) {
  const bool flush = schedule.weight_policy() == WeightPolicy::flush;
  return {.data_parallel = seed % 2 == 0 ? 2 : 1,
          .overlap_grad_reduce = seed % 4 < 2,
          .gather_parameters = seed % 8 < 4,
          .tied_embedding = seed % 3 == 0 && schedule.weight_policy() != WeightPolicy::stashed,
          .global_norm = flush && seed % 5 < 3,
          .recompute = seed % 7 == 0};
}

test::Sizes sizes() { return small_scope() ? test::Sizes{3, 5, 2, 2} : test::Sizes{}; }

TEST(Contention, EqualsTheSweepWithoutContention) {
  std::uint32_t seed = 0;
  const int count = test::for_each_schedule(sizes(), [&](const Schedule& schedule) {
    SCOPED_TRACE(test::describe(schedule));
    const OpGraph graph = lower(schedule, options_for(schedule, ++seed));
    Prices prices = price(graph, RandomCost(seed));
    ASSERT_TRUE(prices.sharing.empty());
    const Timeline expected = simulate(graph, prices);
    for (const LinkSharing& sharing : {wide(graph), apart(graph, Sharing::fair), apart(graph, Sharing::queue)}) {
      prices.sharing = sharing;
      const Timeline timeline = simulate_contended(graph, prices);
      ASSERT_EQ(timeline.start, expected.start);
      ASSERT_EQ(timeline.end, expected.end);
      ASSERT_EQ(timeline.lane_latency, expected.lane_latency);
      bool contend = true;
      ASSERT_EQ(simulate(graph, prices, contend).end, expected.end);
      ASSERT_FALSE(contend);
    }
  });
  EXPECT_GT(count, small_scope() ? 200 : 1000);
}

// Two ranks, one microbatch: F 1 s, transfers 2 s, B 3 s, reductions 4 s. F0 0-1, F1 3-4, B1 4-7. Then rank 1 sends 2 s
// of gradients and reduces its own: on one port at half speed each until 11, and 2 s of the reduction alone. B0 11-14
// and its reduction follow. A ring of half the port's bandwidth keeps it, and the transfer has the other half.
TEST(Contention, CollectivesSharePortsWithTransfers) {
  class Seconds : public CostModel {
   public:
    double compute_s(OpKind kind, int, const MicrobatchShape&, int) const override { return kind == OpKind::F ? 1 : 3; }
    TransferTime transfer(int, int, std::int64_t) const override { return {.occupied_s = 2, .latency_s = 0}; }
    double collective_s(CollectiveKind, int, std::int64_t) const override { return 4; }
  };
  const Schedule schedule = test::make("1f1b", {.p = 2, .m = 1});
  const OpGraph graph = lower(schedule, {.data_parallel = 2, .overlap_grad_reduce = true});
  Prices prices = price(graph, Seconds());
  const auto ends = [&](const LinkSharing& sharing) {
    prices.sharing = sharing;
    const Timeline timeline = simulate(graph, prices);
    std::map<std::string, int> out;
    for (VertexId v = 0; v < graph.size(); ++v) out[graph.name(v)] = static_cast<int>(to_seconds(timeline.end[v]));
    return std::array{out.at("B(stage 0, mb 0)"), out.at("gradient reduce(stage 1, step 0)"),
                      out.at("gradient reduce(stage 0, step 0)")};
  };
  const auto port = [&](double ring) {
    LinkSharing sharing{.num_resources = 1, .links = std::vector<SharedLink>(4)};  // 0->1, 1->0, rank 0, rank 1
    sharing.links[1] = shared(Sharing::fair, {{0, 1}});
    sharing.links[3] = shared(Sharing::fair, {{0, ring}});
    sharing.links[3].speed = ring;
    return sharing;
  };
  EXPECT_EQ(ends({}), (std::array{12, 11, 16}));
  EXPECT_EQ(ends(port(1)), (std::array{14, 13, 18}));
  EXPECT_EQ(ends(port(0.5)), (std::array{14, 11, 18}));
}

TEST(Contention, SlowsDownWithinOrderAndCapacity) {
  std::uint32_t seed = 0;
  int slower = 0;
  test::for_each_schedule(sizes(), [&](const Schedule& schedule) {
    if (schedule.num_ranks() == 1) return;
    SCOPED_TRACE(test::describe(schedule));
    const OpGraph graph = lower(schedule, options_for(schedule, ++seed));
    Prices prices = price(graph, RandomCost(seed));
    const Timeline alone = simulate(graph, prices);
    prices.sharing = ports(graph, seed % 2 == 0 ? Sharing::fair : Sharing::queue);
    const Timeline timeline = simulate(graph, prices);
    slower += timeline.end != alone.end ? 1 : 0;
    std::vector<Duration> lane_end(graph.lanes().size(), Duration{0});
    const auto resources = static_cast<std::size_t>(prices.sharing.num_resources);
    std::vector<std::vector<std::pair<Duration, Duration>>> busy(resources);
    std::vector<double> work(resources, 0);
    for (VertexId v = 0; v < graph.size(); ++v) {
      ASSERT_GE(timeline.start[v], alone.start[v]);
      const Duration takes = timeline.end[v] - timeline.start[v];
      if (graph[v].kind != VertexKind::transfer) {
        ASSERT_EQ(takes, prices.duration[v]);
        continue;
      }
      ASSERT_GE(takes, prices.duration[v]);
      // Lanes run in order, and a transfer starts when its data are available.
      const auto lane = static_cast<std::size_t>(graph[v].lane);
      ASSERT_GE(timeline.start[v], lane_end[lane]);
      ASSERT_GE(timeline.start[v], timeline.end[graph.needs(v).front()]);
      lane_end[lane] = timeline.end[v];
      const auto link = lane - 2 * static_cast<std::size_t>(schedule.num_ranks());
      const SharedLink& shares = prices.sharing.links[link];
      const std::int64_t wire = std::llround(shares.wire_fraction * static_cast<double>(prices.duration[v].count()));
      for (const ResourceUse& use : shares.uses) {
        const auto r = static_cast<std::size_t>(use.resource);
        busy[r].emplace_back(timeline.start[v], timeline.end[v] - (prices.duration[v] - Duration{wire}));
        work[r] += use.share * static_cast<double>(wire);
      }
    }
    // No resource exceeds its capacity while it is in use.
    for (std::size_t r = 0; r < resources; ++r) {
      std::sort(busy[r].begin(), busy[r].end());
      Duration used{0};
      Duration until{0};
      for (const auto& [from, to] : busy[r]) {
        used += std::max(Duration{0}, to - std::max(from, until));
        until = std::max(until, to);
      }
      ASSERT_LE(work[r], static_cast<double>(used.count()) + 1e-6);
    }
    // Deterministic.
    const Timeline again = simulate(graph, prices);
    ASSERT_EQ(timeline.start, again.start);
    ASSERT_EQ(timeline.end, again.end);
  });
  EXPECT_GT(slower, small_scope() ? 20 : 100);
}

TEST(Contention, OneCardForBothDirectionsOfAPipeline) {
  // 1F1B, three ranks, three microbatches. F takes 10 s, B 20 s, a transfer 12 s; each rank sends through one port.
  //   rank 0  F0 0-10, F1 10-20, F2 20-30      0->1  F0 10-22, F1 22-34, F2 34-46
  //   rank 1  F0 22-32, F1 34-44               1->2  F0 32-44, F1 44-56
  //   rank 2  F0 44-54, B0 54-74, F1 74-84, B1 84-104      2->1  B0 74-86, B1 104-116
  //   rank 1  B0 86-106, F2 106-116, B1 116-136
  // Rank 1 starts to send B0 at 106 and F2 at 116. Fair: B0 then has 2 left and ends at 120, when F2 has 10 left: 130.
  // Queue: B0 ends at 118, and F2 takes from 118 to 130. In both cases:
  //   rank 2  F2 130-140, B2 140-160           2->1  B2 160-172
  //   rank 1  B2 172-192                       1->0  B1 136-148, B2 192-204
  //   rank 0  B0 120-140 or 118-138, B1 148-168, B2 204-224
  class Linked : public CostModel {
   public:
    double compute_s(OpKind kind, int, const MicrobatchShape&, int) const override {
      return kind == OpKind::F ? 10 : 20;
    }
    TransferTime transfer(int, int, std::int64_t) const override { return {.occupied_s = 12}; }
  };
  using std::chrono::seconds;
  const Schedule schedule = make_schedule(find_family("1f1b"), {.ranks = 3, .microbatches = 3});
  const OpGraph graph = lower(schedule);
  Prices prices = price(graph, Linked{});
  const auto times = [&](Sharing policy) {
    prices.sharing = ports(graph, policy);
    for (SharedLink& link : prices.sharing.links) link.wire_fraction = 1;
    const Timeline timeline = simulate(graph, prices);
    EXPECT_EQ(*std::max_element(timeline.end.begin(), timeline.end.end()), seconds(224));
    std::map<std::string, std::pair<Duration, Duration>> by_name;
    for (VertexId v = 0; v < graph.size(); ++v) by_name[graph.name(v)] = {timeline.start[v], timeline.end[v]};
    return by_name;
  };
  const std::string gradient = "send B(stage 1, mb 0) 1->0";
  const std::string activation = "send F(stage 1, mb 2) 1->2";
  const auto fair = times(Sharing::fair);
  EXPECT_EQ(fair.at(gradient), std::pair(Duration(seconds(106)), Duration(seconds(120))));
  EXPECT_EQ(fair.at(activation), std::pair(Duration(seconds(116)), Duration(seconds(130))));
  EXPECT_EQ(fair.at("B(stage 0, mb 0)"), std::pair(Duration(seconds(120)), Duration(seconds(140))));
  const auto queue = times(Sharing::queue);
  EXPECT_EQ(queue.at(gradient), std::pair(Duration(seconds(106)), Duration(seconds(118))));
  EXPECT_EQ(queue.at(activation), std::pair(Duration(seconds(118)), Duration(seconds(130))));
}

TEST(Contention, TwoPipelineRanksOfANodeSendConcurrently) {
  // p3.16xlarge, two ranks of four replicas per node: 2->1 and 3->4 leave the middle node through its only card, shared
  // by four replicas for one transfer and by eight for both: both then take twice their price.
  const Scenario scenario = scenario_from_json(nlohmann::json::parse(R"({"model": "models/gpt3-1b.json",
      "cluster": {"name": "p3.16xlarge", "nodes": 3}, "parallelism": {"pp": 6, "dp": 4},
      "batch": {"micro_batch": 1, "microbatches": 12, "sequence_length": 2048}})"),
                                               "test", std::string(SLUICE_SOURCE_DIR) + "/examples");
  const model::Setup setup(scenario);
  const OpGraph& graph = setup.graph();
  const Prices prices = price(graph, setup.cost());
  const auto link_of = [&](int from, int to) {
    for (std::size_t lane = 0; lane < graph.lanes().size(); ++lane) {
      if (graph.lanes()[lane].rank == from && graph.lanes()[lane].peer == to) return static_cast<int>(lane) - 12;
    }
    return -1;
  };
  SharedLinks links(prices.sharing);
  links.add(link_of(2, 1), nanoseconds(0), nanoseconds(1'000'000), 0);
  links.add(link_of(3, 4), nanoseconds(0), nanoseconds(1'000'000), 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_GE(links.next_end(), 0);
    EXPECT_EQ(links.now(), nanoseconds(2'000'000));
  }
  // In the pipeline some of these transfers overlap, no others do, and none takes more than twice its price.
  const Timeline timeline = simulate(graph, prices);
  int slowed = 0;
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind != VertexKind::transfer) continue;
    const Duration takes = timeline.end[v] - timeline.start[v];
    const int link = graph[v].lane - 12;
    const bool over_borders =
        link == link_of(1, 2) || link == link_of(2, 1) || link == link_of(3, 4) || link == link_of(4, 3);
    slowed += takes > prices.duration[v] ? 1 : 0;
    if (!over_borders) {
      EXPECT_EQ(takes, prices.duration[v]);
    }
    EXPECT_LE(takes, 2 * prices.duration[v] + nanoseconds(2));
  }
  EXPECT_GT(slowed, 5);
}

TEST(ContendedPeriod, EqualsThatOfTheSweepWithoutContention) {
  std::uint32_t seed = 0;
  test::for_each_schedule({.ranks = 4, .microbatches = 4, .chunks = 2, .slices = 2}, [&](const Schedule& schedule) {
    if (schedule.weight_policy() != WeightPolicy::flush || schedule.num_ranks() == 1) return;
    SCOPED_TRACE(test::describe(schedule));
    const OpGraph graph = lower(schedule, options_for(schedule, ++seed));
    Prices prices = price(graph, RandomCost(seed));
    const Duration expected = repeated_period(graph, prices);
    prices.sharing = wide(graph);
    ASSERT_EQ(repeated_period(graph, prices), expected);
  });
}

TEST(ContendedPeriod, EqualsThatOfTheRepeatedSchedule) {
  std::uint32_t seed = 0;
  test::for_each_schedule({.ranks = 4, .microbatches = 4, .chunks = 2, .slices = 2}, [&](const Schedule& schedule) {
    if (schedule.weight_policy() != WeightPolicy::flush || schedule.num_ranks() == 1) return;
    SCOPED_TRACE(test::describe(schedule));
    const Sharing policy = ++seed % 2 == 0 ? Sharing::fair : Sharing::queue;
    const RandomCost cost(seed);
    const OpGraph once = lower(schedule);
    Prices prices = price(once, cost);
    prices.sharing = ports(once, policy);
    constexpr int kTimes = 5;
    LaneTimes ends;
    int calls = 0;
    repeat_contended(once, prices, kTimes, [&](const std::vector<LaneTimes>& history) {
      ends = history.back();
      return ++calls == kTimes;
    });
    ASSERT_EQ(calls, kTimes);
    const Schedule longer = test::repeated(schedule, kTimes);
    const OpGraph graph = lower(longer);
    Prices longer_prices = price(graph, cost);
    longer_prices.sharing = ports(graph, policy);
    const Timeline timeline = simulate(graph, longer_prices);
    LaneTimes expected(graph.lanes().size(), Duration{0});
    for (VertexId v = 0; v < graph.size(); ++v) {
      if (graph[v].kind == VertexKind::optimizer || graph[v].kind == VertexKind::collective) continue;
      auto& end = expected[graph[v].lane];
      end = std::max(end, timeline.end[v]);
    }
    ASSERT_EQ(ends, expected);
    const Duration period = repeated_period(once, prices);
    // It lies between the work of the busiest rank and the makespan of one batch.
    const Timeline alone = simulate(once, prices);
    EXPECT_LE(period, *std::max_element(alone.end.begin(), alone.end.end()));
    std::vector<Duration> busy(static_cast<std::size_t>(schedule.num_ranks()), Duration{0});
    for (VertexId v = 0; v < once.size(); ++v) {
      if (once[v].kind == VertexKind::compute || once[v].kind == VertexKind::joint) {
        busy[once.rank_of(v)] += prices.duration[v];
      }
    }
    EXPECT_GE(period, *std::max_element(busy.begin(), busy.end()));
  });
}

}  // namespace
}  // namespace sluice::test
