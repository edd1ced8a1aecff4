#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/oracle.h"
#include "tests/support/shapes.h"

// Every known closed form of a family, to the nanosecond, over all shapes of its range: ranks to 8, microbatches to 24,
// chunks to 3, slices to 8 (a quarter of them under sanitizers). Letters as in the papers: p ranks, m microbatches, v
// chunks, k slices, G units in a group, r a rank; costs of one op f, b (input gradient), w (weight gradient), x = b +
// w; c the latency of a transfer.
namespace sluice::test {
namespace {

using Nanoseconds = std::int64_t;

struct Costs {
  Nanoseconds f = 1, b = 1, w = 1;
  Nanoseconds overlap = 0;  // how much shorter a joint block is than its F and B

  Nanoseconds x() const { return b + w; }
  Nanoseconds all() const { return f + x(); }
  Nanoseconds joint() const { return all() - overlap; }
};

// All equal; f < b > w; w largest; f largest; b largest. Mostly primes, so that no two sums agree by chance.
const std::vector<Costs> kCosts = {{10, 10, 10}, {7, 11, 5}, {5, 7, 13}, {17, 5, 3}, {3, 19, 7}};

// The values of a formula; empty ones are not checked.
struct Expected {
  Nanoseconds makespan = 0;
  std::optional<Nanoseconds> span = {};
  std::function<int(int rank)> peak = {};  // stored until the B or W ends
};

using Formula = std::function<Expected(const Shape&, const Costs&)>;
using Range = std::function<bool(const Shape&)>;

// Checks the family against the formula for all shapes that are in range.
void expect_formula(const std::string& family, const Range& in_range, const Formula& formula,
                    const std::vector<Costs>& costs = kCosts, int chunks = 3) {
  const bool small = test::small_scope();
  const int checked =
      test::for_shapes(family, {.ranks = 8, .microbatches = small ? 12 : 24, .chunks = chunks, .slices = small ? 4 : 8},
                       in_range, [&](const Shape& shape, const Schedule& schedule) {
                         for (const Costs& cost : costs) {
                           SCOPED_TRACE(testing::Message() << "f=" << cost.f << " b=" << cost.b << " w=" << cost.w
                                                           << " joint=" << cost.joint());
                           test::OracleCosts oracle = uniform(cost.f, cost.b, cost.w);
                           oracle.joint = [&](const Op&, const Op&) { return cost.joint(); };
                           const OracleTimes times = longest_path(schedule, oracle);
                           ASSERT_FALSE(times.deadlock);
                           const Expected expected = formula(shape, cost);
                           ASSERT_EQ(times.makespan(), expected.makespan);
                           ASSERT_EQ(times.largest_span(), expected.span.value_or(times.largest_span()));
                           for (int rank = 0; expected.peak && rank < shape.p; ++rank) {
                             ASSERT_EQ(peak_in_flight(schedule, rank), expected.peak(rank)) << "rank " << rank;
                           }
                         }
                       });
  EXPECT_GT(checked, 0);
}

TEST(ClosedForms, Gpipe) {
  expect_formula("gpipe", everywhere, [](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = (s.m + s.p - 1) * (t.f + t.x()), .peak = [s](int) { return s.m; }};
  });
}

TEST(ClosedForms, OneFOneB) {
  expect_formula("1f1b", everywhere, [](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = (s.m + s.p - 1) * (t.f + t.x()), .peak = [s](int r) { return std::min(s.p - r, s.m); }};
  });
}

TEST(ClosedForms, EagerOneFOneB) {
  expect_formula("eager-1f1b", everywhere, [](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = (s.m + s.p - 1) * (t.f + t.x()),
            .peak = [s](int r) { return std::min(2 * (s.p - r) - 1, s.m); }};
  });
}

// The interleaved families warm up by two ops per rank, but by one with a single chunk, as in their base family.
int lead_of(const Shape& s) { return s.v > 1 ? 2 : 1; }

TEST(ClosedForms, Interleaved) {
  const auto in_range = [](const Shape& s) { return s.m % s.p == 0 && s.group == 0; };
  expect_formula("interleaved-1f1b", in_range, [](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = (s.m * s.v + s.p - 1) * (t.f + t.x()),
            .peak = [s](int r) { return std::min((s.v - 1) * s.p + lead_of(s) * (s.p - 1 - r) + 1, s.m * s.v); }};
  });
}

TEST(ClosedForms, LoopedBfs) {
  const auto in_range = [](const Shape& s) { return s.m >= s.p; };
  expect_formula("looped-bfs", in_range, [](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = (s.m * s.v + s.p - 1) * (t.f + t.x()), .peak = [s](int) { return s.m * s.v; }};
  });
}

TEST(ClosedForms, Terapipe) {
  expect_formula("terapipe", everywhere, [](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = (s.m * s.k + s.p - 1) * (t.f + t.x()), .peak = [s](int) { return s.m * s.k; }};
  });
}

TEST(ClosedForms, Seq1F1B) {
  expect_formula("seq1f1b", everywhere, [](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = (s.m * s.k + s.p - 1) * (t.f + t.x()),
            .peak = [s](int r) { return std::min(s.p - 1 - r + s.k, s.m * s.k); }};
  });
}

// The table has none; it is 1f1b's makespan in slices, and the peak is the number of warm-up forwards plus one.
TEST(ClosedForms, EagerSeq1F1B) {
  expect_formula("eager-seq1f1b", everywhere, [](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = (s.m * s.k + s.p - 1) * (t.f + t.x()),
            .peak = [s](int r) { return std::min(2 * (s.p - 1 - r) + s.k, s.m * s.k); }};
  });
}

TEST(ClosedForms, Seq1F1BInterleaved) {
  const auto in_range = [](const Shape& s) { return s.group > 0; };
  expect_formula("seq1f1b-interleaved", in_range, [](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = (s.m * s.k * s.v + s.p - 1) * (t.f + t.x()), .peak = [s](int r) {
              return std::min((s.v - 1) * s.group + lead_of(s) * (s.p - 1 - r) + s.k, s.m * s.k * s.v);
            }};
  });
}

void expect_zb1(const std::string& family) {
  const auto in_range = [](const Shape& s) { return s.m >= s.p; };
  expect_formula(family, in_range, [](const Shape& s, const Costs& t) -> Expected {
    const Nanoseconds work = s.m * s.k * t.all();
    return {.makespan = work + (s.p - 1) * std::max({t.f + t.b - t.w, t.b, t.f}),
            .span = work + (s.p - 1) * std::max(t.f + t.b - t.w, t.b),
            .peak = [s](int) { return s.p - 1 + s.k; }};
  });
}
TEST(ClosedForms, ZbH1) { expect_zb1("zb-h1"); }
TEST(ClosedForms, Seq1F1BZb1p) { expect_zb1("seq1f1b-zb1p"); }

void expect_zb2(const std::string& family, const Range& in_range) {
  expect_formula(family, in_range, [](const Shape& s, const Costs& t) -> Expected {
    const Nanoseconds work = s.m * s.k * t.all();
    return {.makespan = work + (s.p - 1) * std::max({t.f + t.b - 2 * t.w, t.b - t.f, t.f}),
            .span = work + (s.p - 1) * std::max({t.f + t.b - 2 * t.w, t.b - t.f, Nanoseconds{0}}),
            .peak = [s](int) { return 2 * (s.p - 1) + s.k; }};
  });
}
TEST(ClosedForms, ZbH2) {
  expect_zb2("zb-h2", [](const Shape& s) { return s.m >= 2 * s.p - 1; });
}
TEST(ClosedForms, Seq1F1BZb2p) {
  expect_zb2("seq1f1b-zb2p", [](const Shape& s) { return s.m >= 2 * s.p; });
}

TEST(ClosedForms, InterleavedZb) {
  const auto in_range = [](const Shape& s) { return s.m % s.p == 0 && s.group == 0; };
  expect_formula("interleaved-zb", in_range, [](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = s.m * s.v * t.all() + (s.p - 1) * std::max({t.f + t.b - t.w, t.b, t.f}),
            .peak = [s](int) { return s.p * s.v; }};
  });
}

TEST(ClosedForms, ZbV) {
  const auto in_range = [](const Shape& s) { return s.m >= 2 * s.p; };
  const auto formula = [](const Shape& s, const Costs& t) -> Expected {
    const Nanoseconds work = 2 * s.m * t.all();
    return {.makespan = work + (s.p - 1) * std::max(2 * (t.b - t.w), t.b),
            .span = work + (s.p - 1) * 2 * (t.b - t.w),
            .peak = [s](int) { return 2 * s.p; }};
  };
  // w <= f <= b
  expect_formula("zb-v", in_range, formula, {{10, 10, 10}, {7, 11, 5}, {5, 13, 2}, {11, 11, 7}, {7, 13, 7}});
}

// f = b, w <= f; blocks between the time of their B and the sum of both ops.
const std::vector<Costs> kJointCosts = {{10, 10, 10},    {11, 11, 7},     {13, 13, 2},
                                        {10, 10, 10, 7}, {11, 11, 7, 11}, {13, 13, 2, 5}};

// The papers' bubble is added to the work of a rank with m - p - 1 blocks, as on all ranks of the middle.
TEST(ClosedForms, Dualpipe) {
  const auto formula = [](const Shape& s, const Costs& t) -> Expected {
    const Nanoseconds work = s.m * t.all() - (s.m - s.p - 1) * t.overlap;
    return {.makespan = work + (s.p / 2 - 1) * (t.joint() + t.x() - 3 * t.w), .peak = [s](int) { return s.p + 1; }};
  };
  expect_formula("dualpipe", everywhere, formula, kJointCosts);
}

TEST(ClosedForms, DualpipeV) {
  const auto formula = [](const Shape& s, const Costs& t) -> Expected {
    const Nanoseconds work = 2 * s.m * t.all() - (2 * s.m - 2 * s.p - 1) * t.overlap;
    return {.makespan = work + (s.p - 1) * (t.joint() + t.x() - 3 * t.w), .peak = [s](int) { return 2 * s.p + 1; }};
  };
  expect_formula("dualpipe-v", everywhere, formula, kJointCosts);
}

TEST(ClosedForms, Chimera) {
  const auto peak = [](const Shape& s) { return [s](int r) { return s.p / 2 + 1 + std::min(r, s.p - 1 - r); }; };
  const auto backward_alike = [&](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = t.f * (2 * s.m + s.p - 2), .peak = peak(s)};
  };
  const auto backward_twice = [&](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = t.f * (3 * s.m + (s.p - 2) * (1 + s.m / s.p)), .peak = peak(s)};
  };
  expect_formula("chimera", everywhere, backward_alike, {{7, 3, 4}});
  expect_formula("chimera", everywhere, backward_twice, {{7, 3, 11}});
}

// Bubble over total of (p-1)/(2pW+p-1) for x = f and (2p-2)/(3pW+2p-2) for x = 2f, times the total, is what is left of
// it beside the work 2pW(f+x) of a rank: total = work/(1 - bubble).
TEST(ClosedForms, Hanayo) {
  const auto peak = [](const Shape& s) { return [s](int r) { return s.v * s.p - (s.p - 1) + r; }; };
  const auto backward_alike = [&](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = 2 * t.f * (s.v * s.p + s.p - 1), .peak = peak(s)};
  };
  const auto backward_twice = [&](const Shape& s, const Costs& t) -> Expected {
    return {.makespan = t.f * (3 * s.v * s.p + 4 * (s.p - 1)), .peak = peak(s)};
  };
  expect_formula("hanayo", everywhere, backward_alike, {{7, 3, 4}}, /*chunks=*/6);
  expect_formula("hanayo", everywhere, backward_twice, {{7, 3, 11}}, /*chunks=*/6);
}

// Without a flush every batch takes m(f+x), once the pipeline is full.
TEST(ClosedForms, PipedreamPeriod) {
  for (const char* family : {"pipedream", "pipedream-2bw"}) {
    test::for_shapes(
        family, {.ranks = 8, .microbatches = 24}, [](const Shape& s) { return s.m >= s.p - 1; },
        [&](Shape s, const Schedule&) {
          for (const Costs& t : kCosts) {
            std::vector<Nanoseconds> makespans;
            for (s.batches = 2; s.batches <= 4; ++s.batches) {
              const Schedule schedule = test::make(family, s);
              makespans.push_back(longest_path(schedule, uniform(t.f, t.b, t.w)).makespan());
              for (int rank = 0; rank < s.p; ++rank) {
                ASSERT_EQ(peak_in_flight(schedule, rank), std::min(s.p - rank, s.m * s.batches));
              }
            }
            ASSERT_EQ(makespans[1] - makespans[0], s.m * (t.f + t.x()));
            ASSERT_EQ(makespans[2] - makespans[1], s.m * (t.f + t.x()));
          }
        });
  }
}

// A lower bound of a linear placement: the first F reaches the last rank after (p-1)f, which then has all its work
// left.
TEST(ClosedForms, NoLinearPlacementIsFasterThanItsLastRank) {
  for (const char* family : {"gpipe", "1f1b", "eager-1f1b", "terapipe", "seq1f1b", "eager-seq1f1b", "zb-h1", "zb-h2",
                             "seq1f1b-zb1p", "seq1f1b-zb2p"}) {
    test::for_shapes(family, {.ranks = 6, .microbatches = 14, .slices = 3}, everywhere,
                     [&](const Shape& s, const Schedule& schedule) {
                       for (const Costs& t : kCosts) {
                         ASSERT_GE(longest_path(schedule, uniform(t.f, t.b, t.w)).makespan(),
                                   s.m * s.k * t.all() + (s.p - 1) * t.f);
                       }
                     });
  }
}

// Single results that papers and this project's documents quote.

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

// The effect of a transfer's latency c on the makespan, and the results that papers and this project's documents quote.

struct LatencyCosts {
  Nanoseconds f, b, w;
};
constexpr LatencyCosts kLatencyCosts[] = {{20, 20, 20}, {7, 11, 5}, {5, 7, 13}, {34, 5, 3}};

Nanoseconds makespan(const Schedule& schedule, const LatencyCosts& t, Nanoseconds hop) {
  return longest_path(schedule, uniform(t.f, t.b, t.w, hop)).makespan();
}

// `added` is the increase due to c, in units of c; it is exact for c up to `limit`.
void expect_added(const char* family, const std::function<bool(const Shape&)>& in_range,
                  const std::function<Nanoseconds(const Shape&)>& added,
                  const std::function<Nanoseconds(const LatencyCosts&)>& limit) {
  const int checked = test::for_shapes(family, {.ranks = 8, .microbatches = 24, .chunks = 3, .slices = 4}, in_range,
                                       [&](const Shape& shape, const Schedule& schedule) {
                                         for (const LatencyCosts& t : kLatencyCosts) {
                                           const Nanoseconds without = makespan(schedule, t, 0);
                                           for (const Nanoseconds c : {Nanoseconds{1}, limit(t) / 2, limit(t)}) {
                                             ASSERT_EQ(makespan(schedule, t, c) - without, c * added(shape))
                                                 << t.f << "/" << t.b << "/" << t.w << " " << c;
                                           }
                                         }
                                       });
  EXPECT_GT(checked, 0);
}

Nanoseconds any(const LatencyCosts&) { return 1000; }

TEST(Latency, GpipeIncludesEachTransferLatencyOnce) {
  const auto added = [](const Shape& s) { return 2 * (s.p - 1); };
  expect_added("gpipe", everywhere, added, any);
  expect_added("terapipe", everywhere, added, any);
}

TEST(Latency, OneFOneBIncludesTheLatencyOfNearlyEverySlice) {
  const auto added = [](const Shape& s) {
    const int u = (s.m - 1) * s.k;
    return 2 * (s.p - 1 + u - (u + s.p - 1) / s.p);
  };
  expect_added("1f1b", everywhere, added, any);
  expect_added("seq1f1b", everywhere, added, any);
}

TEST(Latency, EagerVariantsHideIt) {
  const auto added = [](const Shape& s) { return 2 * (s.p - 1); };
  const auto limit = [](const LatencyCosts& t) { return (t.f + t.b + t.w) / 2; };
  expect_added("eager-1f1b", everywhere, added, limit);
  expect_added("eager-seq1f1b", everywhere, added, limit);
}

TEST(Latency, InterleavedIncludesTheLatencyOfEveryStage) {
  const auto in_range = [](const Shape& s) { return s.p > 1 && s.v > 1 && s.m % s.p == 0 && s.group == 0; };
  const auto added = [](const Shape& s) { return 2 * (s.v * s.p - 1); };
  const auto limit = [](const LatencyCosts& t) { return std::min(t.f, t.b + t.w); };
  expect_added("interleaved-1f1b", in_range, added, limit);
}

}  // namespace
}  // namespace sluice::test
