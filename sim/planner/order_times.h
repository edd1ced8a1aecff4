#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sim/planner/placed_problem.h"

namespace sluice::sim {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// Computes the times of the ops of given orders: the simulator's longest paths without a graph, for searches that
// evaluate many orders. Exactly equal to the simulator, which a test checks.
class OrderTimes {
 public:
  // Keeps references to `problem` and `table`. `tails`, if given: by op, the minimal time after its end.
  OrderTimes(const PlacedProblem& problem, const OpTable& table, std::vector<std::int64_t> tails = {});

  // Returns the makespan in nanoseconds, including the time after the last op of each rank; kNever for a deadlock, or
  // as soon as the makespan is known to exceed `most`. Precondition: each rank's order respects OpTable::ordered.
  std::int64_t run(const Orders& orders, std::int64_t most = kNever);

  // Of the last complete run.
  std::int64_t end(std::int32_t op) const { return end_[op]; }
  std::int64_t start(std::int32_t op) const { return end(op) - table_.rows[op].duration; }

  // Appends a critical path of the last run to `path`, from its end backwards, as positions (rank, index).
  struct Step {
    int rank = 0;
    int index = 0;
    bool follows = false;  // waited for the op before it on its rank
  };
  void critical_path(const Orders& orders, std::vector<Step>& path) const;

  std::int64_t runs() const { return runs_; }

 private:
  const PlacedProblem& problem_;
  const OpTable& table_;
  std::vector<std::int64_t> tails_;
  std::vector<std::int64_t> arrived_;  // by slot: arrival of its data; -1: not yet
  std::vector<std::int64_t> end_;      // by op
  std::vector<std::int32_t> index_;    // by op: position in its rank's order
  std::vector<std::int32_t> maker_;    // by slot: the op that filled it
  std::vector<std::int64_t> clock_;    // by rank
  std::vector<std::int64_t> lane_free_;
  std::vector<std::int32_t> next_;     // by rank
  std::vector<std::int32_t> waiting_;  // by rank: slot
  std::vector<std::int32_t> runnable_;
  std::int64_t runs_ = 0;
};

// Builds orders for more microbatches from good ones for few: each rank repeats a part of its list that contains
// `period` microbatches of every group. The memory of the rank is the same before and after that part, so limits are
// kept. The part is the one that starts nearest to `from`, in nanoseconds of the short orders. The result respects
// OpTable::ordered but may deadlock. Returns nothing if a rank has no such part, or if `period` does not divide the
// number of microbatches to add. Precondition: the last run of `times` was `orders`, which belong to `few`.
Orders stretched(const OpTable& few, const OpTable& many, const Orders& orders, const OrderTimes& times, int period,
                 std::int64_t from);

}  // namespace sluice::sim
