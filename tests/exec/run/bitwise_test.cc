// Bitwise comparison in float32: the executor against one thread that runs the ops in the same order.

#include <gtest/gtest.h>

#include <cstdlib>

#include "exec/plan/run_plan.h"
#include "tests/support/all_schedules.h"
#include "tests/support/golden.h"
#include "tests/support/straight_line.h"

namespace sluice::test {
namespace {

MicrobatchShape uneven(int k) {
  const std::vector<std::int64_t> cuts[] = {{15}, {9, 6}, {7, 5, 3}, {6, 4, 3, 2}};
  return {1, cuts[k - 1]};
}

void expect_same_bits(const RunSpec& spec, const Schedule& schedule) {
  const RunPlan plan(spec, schedule);
  const TokenSource tokens = TokenSource::synthetic(static_cast<int>(spec.model.vocab), 15, 5);
  EXPECT_EQ(test::train(plan, tokens).weights, test::straight_line(plan, tokens));
}

RunSpec adam(const Transformer& model) {
  RunSpec spec{.model = model, .precision = Precision::float32};
  spec.optimizer.weight_decay = 0.1;
  return spec;
}

TEST(Bitwise, ExecutorMatchesOneThreadForEveryFamily) {
  int tried = 0;
  const bool small = test::small_scope();
  test::for_each_schedule(
      {.ranks = 4, .microbatches = 8, .chunks = 2, .slices = 4, .vocabulary = false}, [&](const Schedule& made) {
        if (made.weight_policy() != WeightPolicy::flush) return;
        if (small && (made.num_microbatches() != 4 || made.num_ranks() == 3)) return;
        SCOPED_TRACE(test::describe(made));
        Schedule schedule = made;
        schedule.resize({uneven(made.max_slices())});
        RunSpec spec = adam(tried % 2 == 0 ? test::small_gpt(made.num_stages()) : test::small_llama(made.num_stages()));
        spec.data_parallel = tried % 3 == 0 ? 2 : 1;
        spec.recompute = tried % 5 == 0;
        expect_same_bits(spec, schedule);
        if (tried % 4 == 0) {
          spec.model =
              tried % 8 == 0 ? test::small_mixtral(made.num_stages()) : test::small_expert_gpt(made.num_stages());
          expect_same_bits(spec, schedule);
        }
        ++tried;
      });
  EXPECT_GT(tried, small ? 50 : 100);
}

}  // namespace
}  // namespace sluice::test
