#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/oracle.h"
#include "tests/support/shapes.h"

// The guarantees of v-half and v-min: memory, and time if F, I and W take equally long. Slots are ops of one chunk
// long, half the time of an op on 1/p of the model; p ranks, m microbatches. Each rank works 6 slots per microbatch.
namespace sluice::test {
namespace {

std::int64_t slots(const Schedule& schedule) {
  const OracleTimes times = longest_path(schedule, uniform(1, 1, 1));
  EXPECT_FALSE(times.deadlock);
  return times.makespan();
}

int largest_peak(const Schedule& schedule) {
  int peak = 0;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) peak = std::max(peak, peak_in_flight(schedule, rank));
  return peak;
}

// In chunks of a microbatch: twice floor((p + 2) / 2) and floor((p + 4) / 3) microbatches (Qi et al. 2024). Every
// schedule of many microbatches also reaches this.
int half(int ranks) { return 2 * ((ranks + 2) / 2); }
int third(int ranks) { return 2 * ((ranks + 4) / 3); }

void expect_peak(const char* family, const std::function<int(int)>& bound) {
  const int checked = test::for_shapes(family, {.ranks = 16, .microbatches = 64}, everywhere,
                                       [&](const Shape& shape, const Schedule& schedule) {
                                         ASSERT_LE(largest_peak(schedule), bound(shape.p));
                                         if (shape.m >= shape.p) {
                                           ASSERT_EQ(largest_peak(schedule), bound(shape.p));
                                         }
                                       });
  EXPECT_EQ(checked, 16 * 64);
}

TEST(BuildingBlock, VHalfStoresHalf) { expect_peak("v-half", half); }
TEST(BuildingBlock, VMinStoresAThird) { expect_peak("v-min", third); }

// Numbers of ranks with the largest differences between slots and memory.
TEST(BuildingBlock, StoresNoMoreOnManyRanks) {
  for (const int p : {31, 32, 33, 64, 65, 66}) {
    EXPECT_EQ(largest_peak(make("v-half", {.p = p, .m = p})), half(p)) << p;
    EXPECT_EQ(largest_peak(make("v-min", {.p = p, .m = p})), third(p)) << p;
  }
}

// Best known makespans of these families, in units of 1/p of the model, so two slots each.
TEST(BuildingBlock, IsNoSlowerThanKnownOrders) {
  struct Row {
    const char* family;
    int p, m;
    double makespan;
  };
  for (const Row& row : std::vector<Row>{{"v-half", 4, 8, 26.5},
                                         {"v-half", 4, 16, 50.5},
                                         {"v-half", 4, 32, 98.5},
                                         {"v-half", 8, 16, 56.5},
                                         {"v-half", 8, 32, 104.5},
                                         {"v-min", 4, 8, 29.5},
                                         {"v-min", 4, 16, 53.5},
                                         {"v-min", 4, 32, 101.5},
                                         {"v-min", 8, 16, 61.5},
                                         {"v-min", 8, 32, 109.5}}) {
    EXPECT_LE(static_cast<double>(slots(make(row.family, {.p = row.p, .m = row.m}))), 2 * row.makespan)
        << row.family << " p=" << row.p << " m=" << row.m;
  }
}

// One microbatch alone takes 4p slots through the V and back, and a W; 6 of them are a rank's work. No schedule idles
// longer than that, nor, from p microbatches on, v-half longer than half of 1f1b's (p - 1)(f + b + w), which is 6(p -
// 1) slots.
TEST(BuildingBlock, IdleTimeIsWithinItsBound) {
  for (const bool is_half : {true, false}) {
    const int checked = test::for_shapes(is_half ? "v-half" : "v-min", {.ranks = 16, .microbatches = 64}, everywhere,
                                         [&](const Shape& shape, const Schedule& schedule) {
                                           const int alone = std::max(4 * shape.p - 5, 0);
                                           const std::int64_t work = std::int64_t{6} * shape.m;
                                           const int bound = is_half && shape.m >= shape.p ? 3 * (shape.p - 1) : alone;
                                           ASSERT_LE(slots(schedule) - work, bound);
                                           if (shape.m == 1 && shape.p > 1) {
                                             ASSERT_EQ(slots(schedule), 4 * shape.p + 1);
                                           }
                                         });
    EXPECT_EQ(checked, 16 * 64);
  }
}

// The block fills all slots: once it repeats, another microbatch adds only its work.
TEST(BuildingBlock, RepeatsWithoutIdleTime) {
  for (const char* family : {"v-half", "v-min"}) {
    for (int p = 1; p <= 16; ++p) {
      const std::int64_t first = slots(make(family, {.p = p, .m = p}));
      for (const int more : {1, 2, p, 5 * p}) {
        EXPECT_EQ(slots(make(family, {.p = p, .m = p + more})) - first, 6 * more) << family << " p=" << p;
      }
    }
  }
}

// v-half's block has free slots between the ops of neighbors, so with f = 10, b = 12, w = 8 another microbatch still
// adds only its work of 2·30 per rank. v-min's has none, and its ranks wait for each other.
TEST(BuildingBlock, VHalfToleratesUnevenCosts) {
  const auto growth = [](const char* family, int p) {
    const auto makespan = [&](int m) {
      return longest_path(make(family, {.p = p, .m = m}), uniform(10, 12, 8)).makespan();
    };
    return makespan(6 * p) - makespan(4 * p);
  };
  for (const int p : {4, 8, 16}) {
    EXPECT_EQ(growth("v-half", p), 2 * p * 60);
    EXPECT_GT(growth("v-min", p), 2 * p * 60);
  }
}

}  // namespace
}  // namespace sluice::test
