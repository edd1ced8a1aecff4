#include "model/timeline/metrics.h"

#include <gtest/gtest.h>

#include "model/cost/uniform.h"
#include "model/graph/lowering.h"
#include "model/schedule/pytorch_csv.h"
#include "sim/engine/engine.h"
#include "tests/support/shapes.h"

namespace sluice::test {
namespace {

TEST(PeakInFlight, ABlockStoresBothOpsInEitherOrder) {
  // The B frees when the block ends, the F allocates when it starts: two at the same time.
  const Schedule backward_first = schedule_from_csv("0F0,(0B0;0F1)OVERLAP_F_B,0B1\n", "s.csv");
  const Schedule forward_first = schedule_from_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "s.csv");
  EXPECT_DOUBLE_EQ(model::peak_in_flight(backward_first, 0), 2);
  EXPECT_DOUBLE_EQ(model::peak_in_flight(forward_first, 0), 2);
  // Separately, the B is complete before the F starts.
  EXPECT_DOUBLE_EQ(model::peak_in_flight(schedule_from_csv("0F0,0B0,0F1,0B1\n", "s.csv"), 0), 1);
}

TEST(Metrics, StepsCountAsWorkButNotAsSpan) {
  // One rank, F 1 s and B 2 s, then a step of 4 s.
  class Stepping : public CostModel {
   public:
    double compute_s(OpKind kind, int, const MicrobatchShape&, int) const override { return kind == OpKind::F ? 1 : 2; }
    TransferTime transfer(int, int, std::int64_t) const override { return {}; }
    double optimizer_s(int) const override { return 4; }
  };
  const Schedule schedule = test::make("1f1b", {.p = 1, .m = 1});
  const OpGraph graph = lower(schedule);
  const Metrics metrics = measure(graph, simulate(graph, price(graph, Stepping{})));
  EXPECT_EQ(metrics.makespan, std::chrono::seconds(7));
  EXPECT_EQ(metrics.ideal, std::chrono::seconds(7));
  EXPECT_EQ(metrics.span, std::chrono::seconds(3));
  EXPECT_DOUBLE_EQ(metrics.bubble_fraction, 0);
}

}  // namespace
}  // namespace sluice::test
