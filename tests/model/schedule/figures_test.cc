#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/oracle.h"
#include "tests/support/shapes.h"

// Single results that papers and this project's documents quote. Letters as in closed_forms_test.cc.
namespace sluice::test {
namespace {

std::int64_t makespan(const Schedule& schedule, const test::OracleCosts& costs) {
  return longest_path(schedule, costs).makespan();
}

// The busiest rank's peak, in units of one microbatch through 1/p of the layers.
double largest_peak(const Schedule& schedule, int units) {
  int peak = 0;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) peak = std::max(peak, peak_in_flight(schedule, rank));
  return static_cast<double>(peak) / units;
}

// p = 4, m = 8, a microbatch takes 8 + 8 + 8 on a stage: with k = 4 slices 2 + 2 + 2 each, with two chunks 4 + 4 + 4.
TEST(Figures, Zb2pOverSlicesIsFasterThanZbV) {
  const Schedule sliced = make("seq1f1b-zb2p", {.p = 4, .m = 8, .k = 4});
  const auto sliced_times = longest_path(sliced, uniform(2, 2, 2));
  EXPECT_EQ(sliced_times.makespan(), 198);      // 8·24 + 3·2
  EXPECT_EQ(sliced_times.largest_span(), 192);  // 8·24
  EXPECT_EQ(largest_peak(sliced, 4), 2.5);      // (2·3 + 4)/4
  const Schedule zb_v = make("zb-v", {.p = 4, .m = 8});
  const auto zb_v_times = longest_path(zb_v, uniform(4, 4, 4));
  EXPECT_EQ(zb_v_times.makespan(), 204);  // 8·24 + 3·4
  EXPECT_EQ(zb_v_times.largest_span(), 192);
  EXPECT_EQ(largest_peak(zb_v, 2), 4.0);
}

// All costs 1: (8 + 3)·3 with the whole backward, 22 if a B counts only its input gradient.
TEST(Figures, FusedBackwardHasBothGradients) {
  const Schedule schedule = make("1f1b", {.p = 4, .m = 8});
  EXPECT_EQ(makespan(schedule, uniform(1, 1, 1)), 33);
  EXPECT_EQ(makespan(schedule, uniform(1, 1, 0)), 22);
}

TEST(Figures, ZeroBubbleFormsDifferOnlyInSpan) {
  const auto h1 = longest_path(make("zb-h1", {.p = 4, .m = 8}), uniform(1, 1, 1));
  const auto h2 = longest_path(make("zb-h2", {.p = 4, .m = 8}), uniform(1, 1, 1));
  EXPECT_EQ(h1.makespan(), 27);  // 8·3 + 3·1
  EXPECT_EQ(h2.makespan(), 27);
  EXPECT_EQ(h1.largest_span(), 27);
  EXPECT_EQ(h2.largest_span(), 24);
}

// 35 slots of 6, and c, half an F, on 2·(3 + 28 - 7) transfers.
TEST(Figures, SlicingMultipliesLatency) {
  const Schedule schedule = make("seq1f1b", {.p = 4, .m = 8, .k = 4});
  EXPECT_EQ(makespan(schedule, uniform(2, 2, 2)), 210);
  EXPECT_EQ(makespan(schedule, uniform(2, 2, 2, 1)), 258);
}

// In tenths: c = 0.1 f. 143·3 + 0.1·2·15 for gpipe; 0.1·2·(15 + 127 - 8) for 1f1b.
TEST(Figures, WithLatencyOneFOneBIsSlowerThanGpipe) {
  EXPECT_EQ(makespan(make("1f1b", {.p = 16, .m = 128}), uniform(10, 10, 10, 1)), 4558);
  EXPECT_EQ(makespan(make("gpipe", {.p = 16, .m = 128}), uniform(10, 10, 10, 1)), 4320);
}

// p = 4, k = 4, v = 2: G + 2·3 + 4 units with the paper's G = p in its text, and p·k in its figure.
TEST(Figures, GroupsOfPTimesKSlicesNearlyDoubleTheMemory) {
  EXPECT_EQ(largest_peak(make("seq1f1b-interleaved", {.p = 4, .m = 8, .v = 2, .k = 4, .group = 4}), 1), 14);
  EXPECT_EQ(largest_peak(make("seq1f1b-interleaved", {.p = 4, .m = 8, .v = 2, .k = 4, .group = 16}), 1), 26);
}

// The optimum of p = m = 4, all costs 1, with at most four activations stored until W; and p = 3, m = 4 at costs 5/6/4.
TEST(Figures, ZbH1IsOptimalInItsMemory) {
  EXPECT_EQ(makespan(make("zb-h1", {.p = 4, .m = 4}), uniform(1, 1, 1)), 15);
  EXPECT_EQ(makespan(make("zb-h1", {.p = 3, .m = 4}), uniform(5, 6, 4)), 74);
}

}  // namespace
}  // namespace sluice::test
