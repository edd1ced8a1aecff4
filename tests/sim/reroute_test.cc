#include "sim/goodput/reroute.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "model/errors.h"
#include "sim/simulator.h"

namespace sluice::test {
namespace {

// Per rank, forwards take 4 s and backwards 8 s.
Scenario reroute_scenario(std::string_view family, int pp, int dp, int microbatches) {
  return sim::parse_scenario(fmt::format(
      R"({{"cost": {{"kind": "uniform", "f": 4, "b": 4, "w": 4}}, "schedule": "{}", "parallelism": {{"pp": {}, "dp": {}}},
          "batch": {{"microbatches": {}}}}})",
      family, pp, dp, microbatches));
}

double delay_s(const model::Setup& setup, const std::vector<int>& lost, int replicas) {
  const auto delay = sim::rerouting_delay(setup, lost, replicas);
  return delay ? to_seconds(*delay) : -1;
}

// On one rank there are no bubbles: the peers compute m d / (d - lost) microbatches, rounded up.
TEST(Rerouting, OfOneRankGivesItsPeersMoreMicrobatches) {
  const model::Setup setup(reroute_scenario("1f1b", 1, 4, 6));
  EXPECT_EQ(delay_s(setup, {0}, 4), 0);
  EXPECT_EQ(delay_s(setup, {1}, 4), 12 * 2);  // 24 / 3 = 8 in place of 6
  EXPECT_EQ(delay_s(setup, {2}, 4), 12 * 6);
  EXPECT_EQ(delay_s(setup, {3}, 4), 12 * 18);
  EXPECT_EQ(delay_s(setup, {1}, 5), 12 * 2);  // 7.5
  EXPECT_EQ(delay_s(setup, {1}, 7), 12);      // one each
  EXPECT_EQ(delay_s(setup, {1}, 400), 12);    // not more replicas than can have one are simulated
}

// Bound at rank i: i forwards, then m' microbatches (2405.14009): the iteration is longer by what does not fit in its
// bubbles, and never shorter. It is shorter than with all lost microbatches at the end.
TEST(Rerouting, UsesBubbles) {
  const int pp = 4;
  const int microbatches = 6;
  const int dp = 3;
  const auto healthy_s = [&](const char* family) {
    return sim::Simulator(reroute_scenario(family, pp, dp, microbatches)).predict().iteration_s();
  };
  EXPECT_EQ(healthy_s("1f1b"), (microbatches + pp - 1) * 12);
  for (const char* family : {"1f1b", "gpipe", "zb-h1"}) {
    const model::Setup setup(reroute_scenario(family, pp, dp, microbatches));
    for (int rank = 0; rank < pp; ++rank) {
      std::vector<int> lost(pp);
      lost[static_cast<std::size_t>(rank)] = 1;
      const double seconds = delay_s(setup, lost, dp);
      EXPECT_GE(healthy_s(family) + seconds, rank * 4 + 9 * 12) << family << rank;
      EXPECT_LE(seconds, 3 * 12) << family << rank;
      lost[static_cast<std::size_t>((rank + 1) % pp)] = 1;
      EXPECT_GE(delay_s(setup, lost, dp), seconds) << family << rank;
    }
  }
  // With backwards in two halves the lost rank costs less than a flush of 1F1B without it, and a few ops.
  const model::Setup split(reroute_scenario("zb-h1", pp, dp, microbatches));
  EXPECT_LE(healthy_s("zb-h1") + delay_s(split, {0, 0, 1, 0}, dp), healthy_s("1f1b") + 2 * 4);
}

// Every family with a flush: all ops once, no deadlock, whichever ranks are lost, or an error that says why not.
TEST(Rerouting, HoldsForEveryFamily) {
  int supported = 0;
  for (const Family& family : all_families()) {
    try {
      const model::Setup setup(reroute_scenario(family.name, 4, 3, 8));
      for (const std::vector<int>& lost : {std::vector<int>{0, 1, 0, 0}, {2, 0, 0, 0}, {1, 0, 1, 1}}) {
        EXPECT_GE(delay_s(setup, lost, 3), 0) << family.name;
      }
      ++supported;
    } catch (const ScheduleError& error) {
      EXPECT_NE(std::string(error.what()).find("replica"), std::string::npos) << error.what();
    } catch (const InputError&) {  // another number of ranks, microbatches or slices
    }
  }
  EXPECT_GE(supported, 12);
}

}  // namespace
}  // namespace sluice::test
