#pragma once

#include <vector>

#include "traces/rows/run_rows.h"

namespace sluice::traces {

// Why ranks of a run that was read stand idle, by rank, as idle_by_cause tells it of a graph: of the one that the run's
// own order of ops, its placement and its collectives make. Where the run has no transfer between two ops, the next one
// waits for the link from the end of the first. Empty if the rows make no such graph (ops missing, steps of several
// batches, a rank that does two things at once), so that causes always add up to makespan - busy.
std::vector<IdleByCause> idle_of_rows(const RunRows& run);

}  // namespace sluice::traces
