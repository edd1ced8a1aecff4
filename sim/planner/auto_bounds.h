#pragma once

#include <cstdint>
#include <vector>

#include "sim/planner/placed_problem.h"

namespace sluice::sim {

// Lower bounds over all orders of a problem, in nanoseconds.
struct AutoBounds {
  std::int64_t makespan = 0;
  std::vector<std::int64_t> tail;  // by op: minimal time from its end to the end of all ops
};

// Computes the bounds. Microbatches are identical, so the ops of each group (kind, stage, slice) may be assumed to run
// in their order. The j-th op of a group then depends on the j-th ops of its data dependencies and on the op before it,
// and, if the memory limit allows n activations of a stage at a time, the j-th forward depends on the (j-n)-th release.
// Heads and tails are longest paths over these edges, and at least the time in which the rank runs all ops that must
// come before (after). The bound is the maximum over the ranks of Jackson's preemptive one-machine bound (Carlier 1982)
// with these heads and tails. A backward counts as its I plus the time that its W adds, whether split or not.
// With `most_orders`, the makespan is also at least the idle_bound of the ranks with a memory limit.
AutoBounds auto_bounds(const PlacedProblem& problem, const OpTable& table, std::int64_t most_orders = 0);

// Jackson's preemptive bound: a lower bound of the makespan of these ops on one machine.
struct HeadTail {
  std::int64_t head = 0;
  std::int64_t duration = 0;
  std::int64_t tail = 0;
};
std::int64_t preemptive_bound(std::vector<HeadTail> ops);

}  // namespace sluice::sim
