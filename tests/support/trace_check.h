#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::test {

// Every breach of the rules for traces that we write, in words, in the order of the events; empty for a good trace.
//
// - An object of `sluice` (schema "sluice.trace/1", version, scenario) and `traceEvents`, each event an object with the
//   keys of its phase (X, M, C, s, f) and no others.
// - A trace of two runs says so before its events: `sides` of `sluice` holds name and ranks of each. Pids count through
//   both, names are "<side> rank <n>", and the sides of a rank stand beside each other.
// - pid and tid are positive; each process and each track that an event names has its four M events, once, and the name
//   that belongs to it.
// - Times are microseconds with exactly three decimals, not negative; unless ranks are left out, the first slice
//   (of each side) starts at 0.
// - Slices of a track lie beside or inside each other, as a stable sort by start opens and closes them;
//   transfers and idle times only beside each other.
// - Name, category, track and args of a slice agree with each other. A transfer takes at least 1 ns.
// - A flow is one s and one f with bp "e", positive integer id, same name, not backwards in time; each stands after the
//   slice of that name, a send and a recv, at whose start it lies. Unless ranks are left out, each transfer's slice
//   has one.
// - Counters are integers, not negative; of one process they have the same series, rise in time, and change.
std::vector<std::string> check_trace(std::string_view json);

}  // namespace sluice::test
