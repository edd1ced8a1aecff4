#include "model/weave/part_kernels.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::model {
namespace {

TEST(PartKernels, ExtentIsBusyTimeAndGaps) {
  const PartKernels part{.busy_s = 5, .second_busy_s = 2, .kernels = 4};
  EXPECT_DOUBLE_EQ(extent_s(part, {}), 5);
  EXPECT_DOUBLE_EQ(extent_s(part, {.kernel_s = 0.25, .second_exposed = 0.5}), 5 + 1 + 1);
}

// Gaps per kernel of 0.1, 0.2 and 0.9 s: the median is 0.2. With these, of a second stream's 4 s are 10 - 7 - 2 = 1
// exposed, and of its 2 s 8 - 6 - 1 = 1: fractions of 0.25 and 0.5.
TEST(PartKernels, GapsAreMedians) {
  const std::vector<TracedExtent> parts = {
      {{.busy_s = 1, .kernels = 10}, 2},
      {{.busy_s = 1, .kernels = 10}, 3},
      {{.busy_s = 1, .kernels = 10}, 10},
      {{.busy_s = 7, .second_busy_s = 4, .kernels = 10}, 10},
      {{.busy_s = 6, .second_busy_s = 2, .kernels = 5}, 8},
  };
  const StreamGaps gaps = fit_gaps(parts);
  EXPECT_DOUBLE_EQ(gaps.kernel_s, 0.2);
  EXPECT_DOUBLE_EQ(gaps.second_exposed, 0.375);
  EXPECT_EQ(fit_gaps({}).kernel_s, 0);
  EXPECT_EQ(fit_gaps({}).second_exposed, 0);
}

}  // namespace
}  // namespace sluice::model
