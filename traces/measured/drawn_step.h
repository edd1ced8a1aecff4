#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/graph/op_graph.h"
#include "model/schedule/schedule.h"
#include "model/timeline/metrics.h"
#include "model/timeline/timeline.h"
#include "traces/measured/measured_run.h"

namespace sluice::traces {

// One measured step of one replica as a graph and its timeline, for whatever reads predictions: causes of idle time,
// critical path, slack, figures, reports, traces.
struct DrawnStep {
  std::int64_t step = 0;  // its number in the files
  int replica = 0;
  std::unique_ptr<Schedule> schedule;  // the orders that the ranks ran
  std::unique_ptr<OpGraph> graph;      // without bytes; refers to the schedule
  // Times since the first start in the replica. No op starts before what it waits for: clocks are not exact, and a
  // receive may be recorded before its send.
  Timeline timeline;
  Duration moved{};  // the largest shift of a start for that
  Metrics metrics;
};

// Lowers the orders of the passes of a step (an index into `run.steps`) and times every vertex as it was measured. A
// transfer takes from the later of the starts of its two sides until the end of its receive. Reductions, gathers,
// clipping and the optimizer are drawn where they were recorded, in the order of a graph. Other ops after the last pass
// are idle time. Throws InputError "step N: ..." for passes that form no schedule, or that deadlock.
DrawnStep drawn_step(const MeasuredRun& run, int step, int replica);

// The index of the step whose duration is nearest to the median of all.
int usual_step(const MeasuredRun& run);

}  // namespace sluice::traces
