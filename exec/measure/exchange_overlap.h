#pragma once

#include <span>
#include <vector>

#include "exec/plan/run_plan.h"
#include "exec/run/worker.h"

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

}  // namespace sluice::exec
