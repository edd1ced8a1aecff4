// The timeline of one pipeline from the clocks of its ranks.

#include "exec/measure/measured_timeline.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "model/graph/lowering.h"
#include "model/schedule/family.h"

namespace sluice::test {
namespace {

// Start and end of rank 0 and 1 for a collective of two ranks.
Timeline timeline_of_collective(const OpGraph& graph, VertexId collective, std::array<std::int64_t, 4> times) {
  std::vector<WorkerClock> clocks(
      2, {std::vector<std::int64_t>(graph.size(), 0), std::vector<std::int64_t>(graph.size(), 0)});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    clocks[rank].starts[collective] = times[2 * rank];
    clocks[rank].ends[collective] = times[2 * rank + 1];
  }
  // The origin of the timeline.
  clocks[0].starts[0] = 1000;
  clocks[0].ends[0] = 1001;
  return measured_timeline(graph, clocks);
}

TEST(MeasuredTimeline, CollectiveBeginsWithTheLastRankAndEndsWithTheFirst) {
  const Schedule schedule = make_schedule(find_family("1f1b"), {.ranks = 2, .microbatches = 2});
  const OpGraph graph = lower(schedule, {.tied_embedding = true});
  VertexId collective = 0;
  while (graph[collective].kind != VertexKind::collective) ++collective;
  const Timeline timeline = timeline_of_collective(graph, collective, {2000, 2900, 2500, 2800});
  EXPECT_EQ(timeline.start[collective].count(), 1500);
  EXPECT_EQ(timeline.end[collective].count(), 1800);
  // Rank 1's clock is late by 700: no vertex ends before it starts.
  const Timeline late = timeline_of_collective(graph, collective, {2000, 2900, 3200, 3500});
  EXPECT_EQ(late.end[collective].count(), 1900);
  EXPECT_EQ(late.start[collective].count(), 1900);
  // No time where a rank has no result.
  const Timeline cut = timeline_of_collective(graph, collective, {2000, 2900, 2500, 0});
  EXPECT_EQ(cut.end[collective].count(), 0);
}

}  // namespace
}  // namespace sluice::test
