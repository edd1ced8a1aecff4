#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "sim/planner/cyclic_problem.h"

namespace sluice::sim {

// What limits a search: a number of steps, so that its result does not depend on the machine, and an interruption.
class SearchSteps {
 public:
  explicit SearchSteps(std::int64_t most, std::function<bool()> stop = {}) : left_(most), stop_(std::move(stop)) {}

  void spend(std::int64_t steps) {
    left_ -= steps;
    if (left_ > check_at_) return;
    check_at_ = left_ - kStepsBetweenChecks;
    if (stop_ && stop_()) left_ = -1;
  }
  bool exhausted() const { return left_ < 0; }
  std::int64_t left() const { return left_; }

 private:
  static constexpr std::int64_t kStepsBetweenChecks = 10'000;
  std::int64_t left_;
  std::int64_t check_at_ = left_ - kStepsBetweenChecks;
  std::function<bool()> stop_;
};

// The least period of a schedule that repeats the ops of its microbatches.
struct CyclicSchedule {
  int microbatches = 1;              // per period
  std::int64_t bound = 0;            // no such schedule has a smaller period, in nanoseconds
  std::int64_t period = 0;           // of the best one found; 0: none
  std::vector<std::int64_t> starts;  // of its ops, by op of the problem

  bool proven() const { return period > 0 && period == bound; }
};

// Searches for the least period until `steps` are exhausted. The search is exact. Of each rank, it enumerates the
// cyclic orders of its ops with the number of periods between any two: they determine the memory, and leave bounds
// between starts (a Zone). Then it joins the ranks one by one. What the remaining ranks must know is a set of zones
// among the ops that exchange results with theirs, of which only those are kept that no other includes. Periods longer
// than a feasible one are feasible, because idle time can be inserted into all ranks; so the least one is found by
// bisection.
CyclicSchedule least_period(const CyclicProblem& problem, SearchSteps steps);

// The orders of `table.microbatches` microbatches in the order of the starts of `cyclic`.
Orders unrolled(const CyclicProblem& problem, const CyclicSchedule& cyclic, const OpTable& table);

}  // namespace sluice::sim
