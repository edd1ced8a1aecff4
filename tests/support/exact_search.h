#pragma once

#include <cstdint>
#include <optional>

#include "sim/planner/placed_problem.h"

namespace sluice::test {

// The least makespan of any order of a small problem, or `known` if none is less, by branch and bound; shares nothing
// with the planner but the problem's declaration. Ops are placed in the order of their starts, each rank any op that is
// ready and fits; a state is given up when one with the same ops placed was no later in everything that the rest
// depends on. Microbatches are alike, so each group of ops is placed in their order. Handles hops, not transfers that
// occupy links, blocking or fused backwards. None if more than `most_states` were looked at.
std::optional<std::int64_t> least_makespan(const PlacedProblem& problem, std::int64_t known, std::int64_t most_states);

}  // namespace sluice::test
