#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "model/input/files.h"
#include "traces/rows/run_rows.h"

namespace sluice::traces {

// One of the two runs of a trace.
struct TraceSide {
  std::string name;  // e.g. "predicted"; letters, digits, spaces and - . _
  const RunRows* run = nullptr;
};

// Writes one Chrome trace of two runs, in the format of `write_chrome_trace`. Each run has its own processes,
// "predicted rank 0" and "measured rank 0"; the two processes of a rank are shown next to each other. Pids of the first
// run start at 1, those of the second follow. A slice that would partly overlap the previous one on its track starts at
// that one's end. `scenario` is a JSON value that describes what was traced, copied verbatim; empty = null. Returns the
// number of events. Throws InputError for equal names or a name with other characters.
std::int64_t write_side_by_side(const ByteSink& sink, const std::array<TraceSide, 2>& sides,
                                const std::string& scenario = "");

// Writes the trace to a file, gzipped if its name ends in ".gz". The file is replaced only when the trace is complete.
// Throws InputError naming `path`.
std::int64_t write_side_by_side_file(const std::string& path, const std::array<TraceSide, 2>& sides,
                                     const std::string& scenario = "");

}  // namespace sluice::traces
