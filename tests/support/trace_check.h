#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::test {

// Checks a trace written by Sluice. Returns all violations of these rules, in the order of events; empty for a valid
// trace.
//
// - The file is an object with `sluice` (schema "sluice.trace/1", version, scenario) and `traceEvents`. Each event is
//   an object with exactly the keys of its phase (X, M, C, s, f).
// - A trace of two runs has, before its events, `sides` in `sluice` with the name and number of ranks of each. Pids
//   are numbered through both sides, process names are "<side> rank <n>", and the processes of a rank are adjacent.
// - pid and tid are positive. Each process and each track that occurs has each of its two M events once, with its
//   name and sort index.
// - Times are non-negative microseconds with exactly three decimals. Unless ranks are omitted, the first slice (of
//   each side) starts at 0.
// - Slices of a track are disjoint or nested, as a stable sort by start opens and closes them; transfers and idle
//   times are disjoint.
// - Name, category, track and args of a slice are consistent. A transfer takes at least 1 ns.
// - A flow is one s and one f event with bp "e", a positive integer id, the same name, not backwards in time. Each
//   follows the slice (send or recv) of that name at whose start it is. Unless ranks are omitted, each slice of a
//   transfer has one flow.
// - Counters are non-negative integers. Those of one process have the same series, increasing times, and change.
std::vector<std::string> check_trace(std::string_view json);

}  // namespace sluice::test
