#pragma once

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// MLPerf Training v6.0, DeepSeek-V3 on GB200 and GB300: uncalibrated, with a scale from one GB200 row (the mean over
// the other rows), and with a scale and a fixed time from all other GB200 rows.
TableScore score_mlperf_experts(const CsvTable& table);

}  // namespace sluice::bench::accuracy
