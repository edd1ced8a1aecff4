#pragma once

#include <cstdint>
#include <vector>

#include "sim/planner/placed_problem.h"

namespace sluice::sim {

// What no order of a problem can beat. Nanoseconds.
struct AutoBounds {
  std::int64_t makespan = 0;
  std::vector<std::int64_t> tail;  // by op: from its end, at least so much follows until the end of everything
};

// Microbatches are alike, so each group of ops (kind, stage, slice) can be taken to run in their order, and then what
// holds for single ops holds for the j-th of each group: it waits for the j-th of what the data edges say, for the one
// before it, and, under a memory limit that lets n of a stage's activations be held at once, the j-th forward waits for
// the (j-n)-th release. Heads and tails are longest paths of these edges, and not before (after) a rank could have run
// what must come before (after) on it. The bound is the most of Jackson's preemptive one-machine bounds over the ranks
// (Carlier 1982), with these heads and tails. A backward counts as its I and what its W adds, whether split or not.
AutoBounds auto_bounds(const PlacedProblem& problem, const OpTable& table);

// Jackson's preemptive bound: no order of these on one machine has a smaller makespan.
struct HeadTail {
  std::int64_t head = 0;
  std::int64_t duration = 0;
  std::int64_t tail = 0;
};
std::int64_t preemptive_bound(std::vector<HeadTail> ops);

}  // namespace sluice::sim
