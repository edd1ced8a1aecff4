#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "traces/measured/measured_run.h"
#include "traces/read/trace_read.h"

namespace sluice::traces {

// Converts a run of rows to one measured step of one replica. Slices count as microbatches of their own, recomputation
// as part of its backward. Throws InputError "source: ..." for joint blocks, whose halves have no times of their own,
// and for stages that are on several ranks.
MeasuredRun measured_rows(TraceRun read, const std::string& source);

// The rows of one step of the first replica, for comparisons: passes, reductions, gathers and optimizer steps;
// transfers if their microbatches are known. `step` is the number of a step; nullopt: the last one. Throws InputError
// "source: ..." if there is no such step.
TraceRun rows_of_step(const MeasuredRun& run, std::optional<std::int64_t> step, const std::string& source);

}  // namespace sluice::traces
