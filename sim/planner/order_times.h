#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sim/planner/placed_problem.h"

namespace sluice::sim {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// When the ops of some orders run: the simulator's longest paths without its graph, for searches that ask often.
// Equal to the simulator to the nanosecond, which a test holds it to.
class OrderTimes {
 public:
  // Refers to `problem` and `table`. `tails`, if given, says by op what at least follows its end.
  OrderTimes(const PlacedProblem& problem, const OpTable& table, std::vector<std::int64_t> tails = {});

  // The makespan in nanoseconds, with what follows on each rank; kNever for a deadlock, or as soon as it is known to
  // be more than `most`.
  // Precondition: each rank's order keeps OpTable::ordered.
  std::int64_t run(const Orders& orders, std::int64_t most = kNever);

  // Of the last run that was not given up.
  std::int64_t end(std::int32_t op) const { return end_[op]; }
  std::int64_t start(std::int32_t op) const { return end(op) - table_.rows[op].duration; }

  // A longest path of the last run, from its end backwards: the ops, each with whether the one before it on its rank is
  // what it waited for. Appends positions (rank, index) to `path`.
  struct Step {
    int rank = 0;
    int index = 0;
    bool follows = false;  // waited for the op before it on its rank
  };
  void longest_path(const Orders& orders, std::vector<Step>& path) const;

  std::int64_t runs() const { return runs_; }

 private:
  const PlacedProblem& problem_;
  const OpTable& table_;
  std::vector<std::int64_t> tails_;
  std::vector<std::int64_t> arrived_;  // by slot: when what it holds is there; -1 before
  std::vector<std::int64_t> end_;      // by op
  std::vector<std::int32_t> index_;    // by op: where it stands in its rank's order
  std::vector<std::int32_t> maker_;    // by slot: the op that filled it
  std::vector<std::int64_t> clock_;    // by rank
  std::vector<std::int64_t> lane_free_;
  std::vector<std::int32_t> next_;     // by rank
  std::vector<std::int32_t> waiting_;  // by rank: slot
  std::vector<std::int32_t> runnable_;
  std::int64_t runs_ = 0;
};

}  // namespace sluice::sim
