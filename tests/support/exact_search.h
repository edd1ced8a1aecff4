#pragma once

#include <cstdint>
#include <optional>

#include "sim/planner/placed_problem.h"

namespace sluice::test {

// Returns the minimum makespan over all orders of a small problem, or `known` if none is lower, by branch and bound.
// Shares only the declaration of the problem with the planner. Ops are placed in the order of their starts; a branch
// places any op that is ready and fits in memory. A state is pruned if a state with the same ops placed was at least as
// early in all times on which the remaining ops depend. Microbatches are identical, so the ops of a group are placed in
// microbatch order. Supports transfer latencies, but no transfers that occupy links, no blocking transfers and no fused
// backwards. Returns nullopt if more than `max_states` states were visited.
std::optional<std::int64_t> least_makespan(const PlacedProblem& problem, std::int64_t known, std::int64_t max_states);

}  // namespace sluice::test
