#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/planner/cyclic_problem.h"

namespace sluice::sim {

// The least period of a schedule that repeats the ops of its microbatches.
struct CyclicSchedule {
  int microbatches = 1;              // per period
  std::int64_t bound = 0;            // no such schedule has a smaller period, in nanoseconds
  std::int64_t period = 0;           // of the best one found; 0: none
  std::vector<std::int64_t> starts;  // of its ops, by op of the problem
  std::int64_t steps = 0;            // of the search

  bool proven() const { return period > 0 && period == bound; }
};

// Searches for the least period. Only `steps` limit the search, so that the result does not depend on the machine. The
// search is exact. Of each rank, it enumerates the cyclic orders of its ops with the number of periods between any two:
// they determine the memory, and leave bounds between starts (a Zone). Then it joins the ranks one by one. What the
// remaining ranks must know is a set of zones among the ops that exchange results with theirs, of which only those
// are kept that no other includes. Periods longer than a feasible one are feasible, because idle time can be inserted
// into all ranks; so the least one is found by bisection.
CyclicSchedule least_period(const CyclicProblem& problem, std::int64_t steps);

// The orders of `table.microbatches` microbatches in the order of the starts of `cyclic`.
Orders unrolled(const CyclicProblem& problem, const CyclicSchedule& cyclic, const OpTable& table);

}  // namespace sluice::sim
