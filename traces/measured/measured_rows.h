#pragma once

#include <string>

#include "traces/measured/measured_run.h"
#include "traces/read/trace_read.h"

namespace sluice::traces {

// Converts a run of rows to one measured step of one replica. Slices count as microbatches of their own, recomputation
// as part of its backward. Throws InputError "source: ..." for joint blocks, whose halves have no times of their own,
// and for stages that are on several ranks.
MeasuredRun measured_rows(const TraceRun& read, const std::string& source);

}  // namespace sluice::traces
