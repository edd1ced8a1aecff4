// Flash attention whichever warp is ahead and whenever copies are done: finds points where threads fail to wait for
// each other. On the emulation alone.

#include <gtest/gtest.h>

#include "kernels/emulation/device.h"
#include "tests/kernels/sliced_attention.h"

namespace sluice::test {
namespace {

using emulation::Schedule;

class FlashAttentionOrders : public ::testing::TestWithParam<Schedule> {};

TEST_P(FlashAttentionOrders, ComesToTheSame) {
  const auto device = emulation::make_device({.schedule = GetParam()});
  expect_flash_as_naive({.heads = 2, .slices = {129, 70}, .first_run = 1}, *device);
  expect_flash_as_naive({.head_dim = 128, .heads = 2, .slices = {129, 70}, .first_run = 1}, *device);
}

INSTANTIATE_TEST_SUITE_P(All, FlashAttentionOrders,
                         ::testing::Values(Schedule{Schedule::Warps::first_ahead, Schedule::Copies::at_once},
                                           Schedule{Schedule::Warps::last_ahead, Schedule::Copies::at_once},
                                           Schedule{Schedule::Warps::first_ahead, Schedule::Copies::at_wait},
                                           Schedule{Schedule::Warps::last_ahead, Schedule::Copies::at_wait},
                                           Schedule{Schedule::Warps::random, Schedule::Copies::random, 3},
                                           Schedule{Schedule::Warps::random, Schedule::Copies::random, 4}));

}  // namespace
}  // namespace sluice::test
