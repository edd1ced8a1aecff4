#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "model/input/files.h"
#include "traces/rows/run_rows.h"

namespace sluice::traces {

// One of two runs in one trace.
struct TraceSide {
  std::string name;  // "predicted": letters, digits, blanks and - . _
  const RunRows* run = nullptr;
};

// Writes one Chrome trace of two runs, as `write_chrome_trace` does of one. Each run has its own processes, "predicted
// rank 0" and "measured rank 0", of which those of one rank stand beside each other; pids of the first run begin at 1,
// those of the second after them. What would overlap on a track in part is drawn from the end of what is before it.
// `scenario` is a JSON value that says what was traced, copied as it stands; empty: null. Returns the number of events.
// Throws InputError for a name with other characters, or two equal ones.
std::int64_t write_side_by_side(const ByteSink& sink, const std::array<TraceSide, 2>& sides,
                                const std::string& scenario = "");

// The same into a file, gzipped where its name ends in ".gz": afterwards it holds the whole trace, or what it held
// before. Throws InputError naming `path`.
std::int64_t write_side_by_side_file(const std::string& path, const std::array<TraceSide, 2>& sides,
                                     const std::string& scenario = "");

}  // namespace sluice::traces
