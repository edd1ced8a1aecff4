#pragma once

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// MLPerf Training v6.0, DeepSeek-V3 on GB200 and GB300: uncalibrated, with a scale from one GB200 row (the mean over
// the other rows), and with a scale and a fixed time from all other GB200 rows.
TableScore score_mlperf_experts(const CsvTable& table);

// DeepSeek-V3's trace of a forward and a backward under DualPipe: the time of the whole, replayed from the extents of
// its parts, and from their busy times alone.
TableScore score_dualpipe_trace(const CsvTable& table);

}  // namespace sluice::bench::accuracy
