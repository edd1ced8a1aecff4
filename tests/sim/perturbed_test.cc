#include "sim/engine/perturbed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/errors.h"
#include "model/input/json_reader.h"
#include "tests/support/simulated.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Priced {
  std::unique_ptr<Schedule> schedule;
  OpGraph graph;
  Prices prices;
};

Priced priced(std::string_view family, const FamilyParams& params, std::string_view uniform) {
  auto schedule = std::make_unique<Schedule>(make_schedule(find_family(family), params));
  OpGraph graph = lower(*schedule);
  Prices prices = price(graph, UniformCost(parse_uniform(uniform), *schedule));
  return {std::move(schedule), std::move(graph), std::move(prices)};
}

Duration makespan(const OpGraph& graph, const Prices& prices) {
  const Timeline timeline = simulate(graph, prices);
  return *std::max_element(timeline.end.begin(), timeline.end.end());
}

TEST(SlowDown, ASlowRankSlowsDownOnlyItsCompute) {
  Priced run = priced("1f1b", {.ranks = 4, .microbatches = 8}, "f=1,b=1,w=1,comm=0.1");
  const Prices before = run.prices;
  slow_down(run.graph, {.slow_ranks = {{.rank = 2, .factor = 1.5}}}, run.prices);
  for (VertexId v = 0; v < run.graph.size(); ++v) {
    const bool slow = run.graph[v].lane == run.graph.compute_lane(2);
    EXPECT_EQ(run.prices.duration[v].count(), before.duration[v].count() * (slow ? 3 : 2) / 2);
  }
  EXPECT_EQ(run.prices.lane_latency, before.lane_latency);
}

TEST(SlowDown, OneForwardOneBackwardRunsAtThePaceOfItsSlowestRank) {
  // p = 2, m = 4, f = 1, x = 2. Rank 1 takes twice as long: F0 0-1 on rank 0, then rank 1 is busy for
  // 4 (2 + 4) = 24, and rank 0 ends with a B of 2: 1 + 24 + 2.
  Priced run = priced("1f1b", {.ranks = 2, .microbatches = 4}, "f=1,b=1,w=1");
  slow_down(run.graph, {.slow_ranks = {{.rank = 1, .factor = 2}}}, run.prices);
  EXPECT_EQ(makespan(run.graph, run.prices), std::chrono::seconds(27));
}

TEST(SlowDown, ASlowLinkDelaysBothDirections) {
  // gpipe, two ranks, m = 1: F, transfer, F, B, transfer, B = 1 + c + 1 + 2 + c + 2 with c = 3 x 0.5.
  Priced run = priced("gpipe", {.ranks = 2, .microbatches = 1}, "f=1,b=1,w=1,comm=0.5");
  slow_down(run.graph, {.slow_links = {{.a = 1, .b = 0, .factor = 3}}}, run.prices);
  EXPECT_EQ(makespan(run.graph, run.prices), std::chrono::seconds(9));
  // Also while it occupies the link.
  Priced wire = priced("gpipe", {.ranks = 2, .microbatches = 1}, "f=1,b=1,w=1");
  for (VertexId v = 0; v < wire.graph.size(); ++v) {
    if (wire.graph[v].kind == VertexKind::transfer) wire.prices.duration[v] = std::chrono::seconds(1);
  }
  slow_down(wire.graph, {.slow_links = {{.a = 0, .b = 1, .factor = 3}}}, wire.prices);
  EXPECT_EQ(makespan(wire.graph, wire.prices), std::chrono::seconds(12));
}

TEST(SlowDown, ASlowLinkTakesLessOfASharedResource) {
  // gpipe on three ranks: rank 1 sends activations to 2 and gradients to 0 through one port. At half speed the link to
  // 2 uses half of the port, which leaves the other half to the other link.
  Priced run = priced("gpipe", {.ranks = 3, .microbatches = 4}, "f=1,b=1,w=1");
  const auto first_link = 2 * static_cast<std::size_t>(3);
  run.prices.sharing.num_resources = 1;
  run.prices.sharing.links.resize(run.graph.lanes().size() - first_link);
  for (std::size_t lane = first_link; lane < run.graph.lanes().size(); ++lane) {
    if (run.graph.lanes()[lane].rank != 1) continue;
    run.prices.sharing.links[lane - first_link] = {.policy = Sharing::fair, .speed = 1, .uses = {{0, 1.0}}};
  }
  slow_down(run.graph, {.slow_links = {{.a = 1, .b = 2, .factor = 2}}}, run.prices);
  for (std::size_t lane = first_link; lane < run.graph.lanes().size(); ++lane) {
    const Lane& link = run.graph.lanes()[lane];
    if (link.rank != 1) continue;
    const SharedLink& shared = run.prices.sharing.links[lane - first_link];
    EXPECT_DOUBLE_EQ(shared.speed, link.peer == 2 ? 0.5 : 1);
    EXPECT_DOUBLE_EQ(shared.uses.at(0).share, link.peer == 2 ? 0.5 : 1);
  }
}

TEST(SlowDown, RejectsUnknownRanksAndLinks) {
  Priced run = priced("1f1b", {.ranks = 4, .microbatches = 8}, "f=1,b=1,w=1");
  EXPECT_THAT([&] { slow_down(run.graph, {.slow_ranks = {{.rank = 4, .factor = 2}}}, run.prices); },
              ThrowsMessage<InputError>(HasSubstr("/perturbation/slow_ranks/0: expected a rank from 0 to 3, got 4")));
  EXPECT_THAT([&] { slow_down(run.graph, {.slow_links = {{.a = 0, .b = 2, .factor = 2}}}, run.prices); },
              ThrowsMessage<InputError>(
                  HasSubstr("/perturbation/slow_links/0: expected a link with transfers: 0-1, 1-2, 2-3, got 0-2")));
  EXPECT_THAT(
      [&] {
        slow_down(run.graph, {.slow_ranks = {{.rank = 0, .factor = 1e6}, {.rank = 0, .factor = 1e6}}}, run.prices);
      },
      ThrowsMessage<InputError>(HasSubstr("years")));
}

TEST(Trials, DependOnlyOnSeedAndNumber) {
  const Priced run = priced("zb-h1", {.ranks = 4, .microbatches = 8}, "f=1,b=1,w=1");
  Perturbation noise{.jitter = {Jitter::Kind::lognormal, 0.1}, .trials = 64, .seed = 7};
  const Trials all = run_trials(run.graph, run.prices, noise);
  EXPECT_TRUE(std::is_sorted(all.makespans.begin(), all.makespans.end()));
  EXPECT_EQ(run_trials(run.graph, run.prices, noise).makespans, all.makespans);
  // The first trials do not depend on the number of trials or on threads.
  noise.trials = 16;
  const Trials some = run_trials(run.graph, run.prices, noise);
  EXPECT_TRUE(std::includes(all.makespans.begin(), all.makespans.end(), some.makespans.begin(), some.makespans.end()));
  noise.seed = 8;
  EXPECT_NE(run_trials(run.graph, run.prices, noise).makespans, some.makespans);
}

// On one rank the makespan is a sum of 2m independent durations with known mean and variance.
TEST(Trials, FactorsHaveMeanOneAndTheRequestedSpread) {
  constexpr int kOps = 2 * 100;
  const Priced run = priced("1f1b", {.ranks = 1, .microbatches = kOps / 2}, "f=1,b=1,w=0");
  const double s = 0.2;
  // Of one factor. Truncating a normal distribution at five deviations is negligible.
  const std::pair<Jitter::Kind, double> cases[] = {{Jitter::Kind::lognormal, std::exp(s * s) - 1},
                                                   {Jitter::Kind::normal, s * s},
                                                   {Jitter::Kind::uniform, s * s / 3}};
  for (const auto& [kind, variance] : cases) {
    const Perturbation noise{.jitter = {kind, s}, .trials = 4000, .seed = 3};
    const Trials trials = run_trials(run.graph, run.prices, noise);
    const double deviation = std::sqrt(kOps * variance);
    EXPECT_NEAR(trials.mean_s, kOps, 5 * deviation / std::sqrt(4000.0));
    EXPECT_NEAR(trials.deviation_s, deviation, 0.06 * deviation);  // 5 / sqrt(2 x 4000)
  }
}

// Two transfers of 1 s each, one per direction, are all of the makespan: the sum of two independent latencies.
TEST(Trials, LatenciesVary) {
  const Priced run = priced("gpipe", {.ranks = 2, .microbatches = 1}, "f=0,b=0,w=0,comm=1");
  const double s = 0.1;
  const Trials trials =
      run_trials(run.graph, run.prices, {.jitter = {Jitter::Kind::normal, s}, .trials = 4000, .seed = 3});
  const double deviation = std::sqrt(2.0) * s;
  EXPECT_NEAR(trials.mean_s, 2, 5 * deviation / std::sqrt(4000.0));
  EXPECT_NEAR(trials.deviation_s, deviation, 0.06 * deviation);
}

TEST(Trials, JitterIncreasesTheMeanMakespan) {
  const Priced run = priced("1f1b", {.ranks = 4, .microbatches = 16}, "f=1,b=1,w=1");
  const Perturbation noise{.jitter = {Jitter::Kind::normal, 0.1}, .trials = 200};
  // The mean of a maximum is at least the maximum of the means, and many paths are nearly critical here.
  EXPECT_GT(run_trials(run.graph, run.prices, noise).mean_s, to_seconds(makespan(run.graph, run.prices)) * 1.01);
}

TEST(Trials, ZeroSpreadHasNoEffect) {
  const Priced run = priced("1f1b", {.ranks = 2, .microbatches = 4}, "f=1,b=1,w=1");
  const Trials trials = run_trials(run.graph, run.prices, {.jitter = {Jitter::Kind::lognormal, 0}, .trials = 3});
  EXPECT_EQ(trials.makespans, std::vector<Duration>(3, makespan(run.graph, run.prices)));
  EXPECT_EQ(trials.deviation_s, 0);
}

TEST(Trials, QuantilesAreLinearBetweenNeighbors) {
  const Trials trials{.makespans = {Duration{10}, Duration{20}, Duration{40}}};
  EXPECT_EQ(trials.quantile(0), Duration{10});
  EXPECT_EQ(trials.quantile(0.25), Duration{15});
  EXPECT_EQ(trials.quantile(0.5), Duration{20});
  EXPECT_EQ(trials.quantile(0.75), Duration{30});
  EXPECT_EQ(trials.quantile(1), Duration{40});
}

TEST(Jitter, NamesTheExpectedFormat) {
  EXPECT_EQ(to_string(parse_jitter("lognormal:0.05", "--jitter")), "lognormal:0.05");
  EXPECT_EQ(parse_jitter("none", "--jitter").kind, Jitter::Kind::none);
  for (const char* wrong : {"", "lognormal", "lognormal:", "lognormal:x", "lognormal:0.1x", "lognormal:-1",
                            "lognormal:4", "uniform:1.5", "none:0", "gauss:0.1", "normal:nan"}) {
    EXPECT_THAT([&] { parse_jitter(wrong, "--jitter"); }, ThrowsMessage<InputError>(HasSubstr("--jitter: expected")))
        << wrong;
  }
}

TEST(Perturbation, ReadsItsSection) {
  const Json json = Json::parse(R"({"slow_ranks": [{"rank": 3, "factor": 1.1}],
      "slow_links": [{"between": [0, 1], "factor": 2}], "jitter": "uniform:0.1", "seed": 5})");
  JsonReader reader(json, "s.json", "/perturbation");
  const Perturbation read = perturbation_from_json(reader);
  reader.finish();
  EXPECT_EQ(read.slow_ranks.at(0).rank, 3);
  EXPECT_EQ(read.slow_links.at(0).b, 1);
  EXPECT_EQ(read.trials, 1000);
  EXPECT_EQ(read.seed, 5U);
  for (const auto& [text, message] :
       {std::pair(R"({"trials": 5})", "/perturbation/trials: requires jitter"),
        {R"({"slow_links": [{"between": [0], "factor": 2}]})", "/perturbation/slow_links/0/between: expected the two"},
        {R"({"slow_ranks": [{"rank": 0}]})", "/perturbation/slow_ranks/0"},
        {R"({"slow_ranks": [{"rank": 0, "factor": 0}]})", "/perturbation/slow_ranks/0/factor"},
        {R"({"jitter": "x:1"})", "s.json: /perturbation/jitter: expected lognormal"}}) {
    const Json wrong = Json::parse(text);
    EXPECT_THAT(
        [&] {
          JsonReader wrong_reader(wrong, "s.json", "/perturbation");
          perturbation_from_json(wrong_reader);
        },
        ThrowsMessage<InputError>(HasSubstr(message)));
  }
}

}  // namespace
}  // namespace sluice::test
