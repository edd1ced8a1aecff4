#pragma once

#include <vector>

#include "traces/rows/run_rows.h"

namespace sluice::traces {

// Returns the idle time by cause of each rank of a run that was read from a file: idle_by_cause of the graph that is
// reconstructed from the order of its ops, its placement and its collectives. If the run has no transfer between two
// ops, the second one waits for the link from the end of the first. Returns an empty list if no such graph exists
// (missing ops, steps of several batches, overlapping ops on a rank). Causes always sum to makespan - busy.
std::vector<IdleByCause> idle_of_rows(const RunRows& run);

}  // namespace sluice::traces
