#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/support/oracle.h"
#include "tests/support/shapes.h"

// The effect of a transfer's latency c on the makespan, and the results that papers and this project's documents quote.
// Letters as in closed_forms_test.cc.
namespace sluice::test {
namespace {

using Nanoseconds = std::int64_t;

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
