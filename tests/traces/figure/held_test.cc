#include "traces/figure/held.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/simulated.h"

namespace sluice::test {
namespace {

std::vector<int> all_ranks(const Schedule& schedule) {
  std::vector<int> ranks(static_cast<std::size_t>(schedule.num_ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

double peak(const std::vector<HeldLevel>& levels) {
  double most = 0;
  for (const HeldLevel& level : levels) most = std::max(most, level.amount);
  return most;
}

TEST(Held, WithoutBytesItMatchesMetrics) {
  for (const Family& family : all_families()) {
    const auto run = simulated(make_schedule(family, {.ranks = 4, .microbatches = family.name == "hanayo" ? 4 : 8}),
                               "f=1,b=1.3,w=0.7,comm=0.2");
    const Metrics metrics = measure(run.graph, run.timeline);
    const Held held =
        held_over_time({.graph = &run.graph, .timeline = &run.timeline, .metrics = &metrics}, all_ranks(*run.schedule));
    EXPECT_FALSE(held.bytes);
    ASSERT_EQ(held.levels.size(), 4U);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const auto& levels = held.levels[rank];
      EXPECT_NEAR(peak(levels), metrics.ranks[rank].peak_in_flight, 1e-9) << family.name << " rank " << rank;
      EXPECT_NEAR(levels.back().amount, 0, 1e-9) << family.name;  // all memory is released
      const auto not_later = [](const HeldLevel& a, const HeldLevel& b) { return a.time >= b.time; };
      EXPECT_EQ(std::adjacent_find(levels.begin(), levels.end(), not_later), levels.end()) << family.name;
    }
    EXPECT_DOUBLE_EQ(held.most, peak(held.levels[held.most_at]));
  }
}

TEST(Held, RankWithHighestPeakIsAlwaysIncluded) {
  // 1f1b: rank r has p - r microbatches in flight, so rank 0 has the highest peak.
  const auto run = simulated("1f1b", {.ranks = 4, .microbatches = 8});
  const Metrics metrics = measure(run.graph, run.timeline);
  const std::vector<int> requested = {2, 3};
  const Held held = held_over_time({.graph = &run.graph, .timeline = &run.timeline, .metrics = &metrics}, requested);
  EXPECT_EQ(held.ranks, (std::vector<int>{2, 3, 0}));
  EXPECT_EQ(held.most_at, 2U);
  EXPECT_EQ(held.most, 4);
}

TEST(Held, BytesAreInGiB) {
  const auto run = simulated("1f1b", {.ranks = 1, .microbatches = 1});
  // Without a footprint the graph has no bytes, and memory is ignored.
  const Metrics metrics = measure(run.graph, run.timeline);
  const std::vector<RankMemory> memory = memory_over_time(run.graph, run.timeline, true);
  const std::vector<int> requested = {0};
  EXPECT_FALSE(
      held_over_time({.graph = &run.graph, .timeline = &run.timeline, .metrics = &metrics, .memory = memory}, requested)
          .bytes);

  class HeldFootprint : public Footprint {
   public:
    StageBytes stage(int) const override { return {.weights = std::int64_t{1} << 30}; }
    SliceBytes slice(int, const MicrobatchShape&, int) const override {
      return {.activations_to_weight_gradient = std::int64_t{1} << 29};
    }
  };
  const HeldFootprint footprint;
  const auto with_bytes = simulated("1f1b", {.ranks = 1, .microbatches = 1}, "f=1,b=1,w=1", {.footprint = &footprint});
  const std::vector<RankMemory> bytes = memory_over_time(with_bytes.graph, with_bytes.timeline, true);
  const Held held = held_over_time(
      {.graph = &with_bytes.graph, .timeline = &with_bytes.timeline, .metrics = &metrics, .memory = bytes}, requested);
  EXPECT_TRUE(held.bytes);
  // Weights of 1 GiB, and half a GiB from the start of F to the end of B.
  EXPECT_EQ(held.most, 1.5);
  ASSERT_FALSE(held.levels[0].empty());
  EXPECT_EQ(held.levels[0].back().amount, 1);
}

constexpr HeldScale kScale{.left = 10, .px_per_ns = 1, .bottom = 100, .px_per_unit = 10};

TEST(HeldPath, IsAStepFunction) {
  const std::vector<HeldLevel> levels = {{Duration{0}, 1}, {Duration{3}, 2}, {Duration{5}, 0}};
  EXPECT_EQ(held_path(levels, Duration{8}, kScale), "M10 90H13V80H15V100H18");
}

TEST(HeldPath, LevelsInAColumnKeepTheirRangeAndLastValue) {
  // At 0.1 px per ns, 0 to 3 ns are in the same half px, and the last level continues.
  const std::vector<HeldLevel> levels = {{Duration{0}, 1}, {Duration{1}, 5}, {Duration{3}, 3}, {Duration{100}, 0}};
  HeldScale scale = kScale;
  scale.px_per_ns = 0.1;
  EXPECT_EQ(held_path(levels, Duration{120}, scale), "M10 90V50V70H20V100H22");
  // The last level of a column may be its maximum.
  const std::vector<HeldLevel> rising = {{Duration{0}, 1}, {Duration{1}, 5}, {Duration{100}, 0}};
  EXPECT_EQ(held_path(rising, Duration{120}, scale), "M10 90V50H20V100H22");
}

TEST(HeldPath, LengthIsBoundedForManyLevels) {
  std::vector<HeldLevel> levels;
  for (int i = 0; i < 200'000; ++i) levels.push_back({Duration{i}, i % 2 == 0 ? 1.0 : 2.0});
  HeldScale scale = kScale;
  scale.px_per_ns = 600.0 / 200'000;
  EXPECT_LT(held_path(levels, Duration{200'000}, scale).size(), 40'000U);
  EXPECT_EQ(held_path({}, Duration{1}, scale), "");
}

}  // namespace
}  // namespace sluice::test
