#pragma once

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// A trace of a forward and a backward under DualPipe: a row per part and stream, with its busy time and its extent
// (first start to last end). Scores the weave `dualpipe` with the extents: the time of the whole, the number of parts
// that wait for the same part as in the trace, and the idle time of the compute lane; and with the busy times alone,
// and with busy times and contention, the time. In the trace, a part waits for the one that ends last before its start.
TableScore score_dualpipe_trace(const CsvTable& table);

}  // namespace sluice::bench::accuracy
