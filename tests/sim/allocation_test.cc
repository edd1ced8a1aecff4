// The number of allocations of the engines does not grow with the number of ops.

#include <gtest/gtest.h>

#include "model/graph/lowering.h"
#include "model/schedule/family.h"
#include "sim/engine/engine.h"
#include "tests/support/count_allocations.h"

namespace sluice::test {
namespace {

class LinkedCost : public CostModel {
 public:
  double compute_s(OpKind kind, int stage, const MicrobatchShape&, int) const override {
    return (kind == OpKind::F ? 1e-3 : 2e-3) * (1 + 0.1 * stage);
  }
  TransferTime transfer(int, int, std::int64_t) const override { return {.occupied_s = 1.3e-3}; }
};

std::int64_t allocations_of(int microbatches, Sharing policy) {
  const Schedule schedule = make_schedule(find_family("1f1b"), {.ranks = 4, .microbatches = microbatches});
  const OpGraph graph = lower(schedule);
  Prices prices = price(graph, LinkedCost{});
  if (policy != Sharing::none) {
    prices.sharing.num_resources = 8;
    for (const Lane& lane : graph.lanes()) {
      if (lane.kind != LaneKind::link) continue;
      prices.sharing.links.push_back({.policy = policy, .uses = {{lane.rank, 1}, {4 + lane.peer, 1}}});
    }
  }
  const std::int64_t before = test::allocations();
  const Timeline timeline = simulate(graph, prices);
  return test::allocations() - before;
}

TEST(Allocations, DoNotGrowWithTheNumberOfOps) {
  for (const Sharing policy : {Sharing::none, Sharing::fair, Sharing::queue}) {
    const std::int64_t few = allocations_of(8, policy);
    EXPECT_GT(few, 0);
    EXPECT_EQ(allocations_of(800, policy), few);
  }
}

}  // namespace
}  // namespace sluice::test
