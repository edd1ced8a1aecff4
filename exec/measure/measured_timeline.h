#pragma once

#include <span>
#include <vector>

#include "exec/plan/run_plan.h"
#include "exec/run/worker.h"
#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"

namespace sluice::exec {

// Dispatch and combine of the layers with experts of one pipeline rank in one run of the graph.
struct ExchangeOverlap {
  double seconds = 0;   // in total, with waits for other ranks
  double hidden_s = 0;  // of them, while the rank computed another part
  // The same as predicted by the weaves of the blocks (weave_block), from the measured durations of their parts.
  double predicted_hidden_s = 0;
};

// Returns the overlap per pipeline rank, of the parts that were recorded (Worker::parts). `clocks`: by pipeline rank.
std::vector<ExchangeOverlap> exchange_overlap(const RunPlan& plan, std::span<const WorkerClock> clocks);

// Returns the timeline of one pipeline, combined from the times of its workers (by pipeline rank) in one run of the
// graph. A transfer starts when its sender posts it, or when the previous one has left the lane, and ends when the
// receiver has it; a collective starts when its last rank joins, and ends when the first rank has its result. Vertices
// that did not end, in a failed run, are at time 0.
Timeline measured_timeline(const OpGraph& graph, std::span<const WorkerClock> workers);

// Returns the parts of layers with experts, by pipeline rank and in the order of time, relative to the start of the
// timeline, as measured_timeline's. Those of vertices that did not end are left out.
std::vector<VertexPart> measured_parts(const OpGraph& graph, std::span<const WorkerClock> workers);

// Returns by vertex whether it has ended.
std::vector<char> ended_vertices(const OpGraph& graph, std::span<const WorkerClock> workers);

}  // namespace sluice::exec
