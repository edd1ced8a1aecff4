// Unbuffered messages: the plans of every family run to their end, and broken plans are rejected.

#include "exec/plan/message_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "exec/plan/run_plan.h"
#include "model/errors.h"
#include "model/schedule/family.h"
#include "tests/support/all_schedules.h"
#include "tests/support/errors.h"
#include "tests/support/one_device.h"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

std::vector<RankPlan> ranks_of(const RunPlan& plan) {
  std::vector<RankPlan> ranks;
  for (int rank = 0; rank < plan.layout().pipeline; ++rank) ranks.push_back(plan.rank(rank));
  return ranks;
}

std::string refusal(const RunPlan& plan, const std::vector<RankPlan>& ranks) {
  return test::error_from<ScheduleError>([&] { check_message_order(plan.graph(), ranks); }, "accepted");
}

TEST(MessageOrder, HoldsForEveryFamily) {
  int tried = 0;
  int messages = 0;
  test::for_each_schedule(
      {.ranks = 4, .microbatches = 6, .chunks = 2, .slices = 3, .vocabulary = false}, [&](const Schedule& made) {
        SCOPED_TRACE(test::describe(made));
        Schedule schedule = made;
        schedule.resize({made.max_slices() == 1   ? MicrobatchShape{1, {6}}
                         : made.max_slices() == 2 ? MicrobatchShape{1, {4, 2}}
                                                  : MicrobatchShape{1, {3, 2, 1}}});
        RunSpec spec{.model = test::small_gpt(std::max(made.num_stages(), 2)), .precision = Precision::float32};
        spec.clip_gradients = 1;
        const RunPlan plan(spec, schedule);
        const std::vector<RankPlan> ranks = ranks_of(plan);
        EXPECT_EQ(refusal(plan, ranks), "accepted");
        for (const RankPlan& rank : ranks) messages += static_cast<int>(rank.sends.size());
        ++tried;
      });
  EXPECT_GT(tried, 500);
  EXPECT_GT(messages, 10000);
}

class BrokenPlan : public ::testing::Test {
 protected:
  RunSpec spec_{.model = test::small_gpt(2), .precision = Precision::float32};
  RunPlan plan_{spec_,
                make_schedule(find_family("1f1b"), {.ranks = 2, .microbatches = 3, .shape = MicrobatchShape{1, {4}}})};
  std::vector<RankPlan> ranks_ = ranks_of(plan_);
};

TEST_F(BrokenPlan, WithReorderedMessagesIsRejected) {
  EXPECT_EQ(refusal(plan_, ranks_), "accepted");
  std::swap(ranks_[0].sends[0].vertex, ranks_[0].sends[1].vertex);
  EXPECT_THAT(refusal(plan_, ranks_), HasSubstr("message 0 from rank 0 to rank 1: "));
  EXPECT_THAT(refusal(plan_, ranks_), HasSubstr("the sender sends send F(stage 0, mb 1) 0->1, the receiver expects "));
}

TEST_F(BrokenPlan, WithAMissingMessageIsRejected) {
  ranks_[0].sends.pop_back();
  EXPECT_THAT(refusal(plan_, ranks_),
              HasSubstr("message 2 from rank 0 to rank 1: the sender sends no further message, the receiver expects "));
}

// Rank 1 frees its buffer for the first activation only after it has sent its first gradient, which needs that
// activation.
TEST_F(BrokenPlan, WithADeadlockIsRejected) {
  RankPlan& last = ranks_[1];
  const int first = last.first_posts.front();
  last.first_posts.erase(last.first_posts.begin());
  last.steps.back().posts.push_back(first);
  EXPECT_THAT(refusal(plan_, ranks_), HasSubstr("unbuffered messages deadlock: "));
  EXPECT_THAT(refusal(plan_, ranks_), HasSubstr("rank 1 waits before F(stage 1, mb 0) for "));
}

}  // namespace
}  // namespace sluice::test
