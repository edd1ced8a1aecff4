#pragma once

#include <span>
#include <vector>

#include "exec/run/worker.h"
#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"

namespace sluice::exec {

// The timeline of one pipeline, put together of what its workers (by pipeline rank) noted in one run of the graph. A
// transfer starts when its sender hands it over, or when the one before it has left the lane, and ends when the
// receiver has it; a collective starts when its last rank has come, and ends when the first has its result.
// What has not ended, in a run that broke, is at 0.
Timeline measured_timeline(const OpGraph& graph, std::span<const WorkerClock> workers);

// By vertex: whether it has ended.
std::vector<char> ended_vertices(const OpGraph& graph, std::span<const WorkerClock> workers);

}  // namespace sluice::exec
