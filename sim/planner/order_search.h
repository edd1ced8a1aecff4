#pragma once

#include <cstdint>
#include <functional>
#include <random>

#include "sim/planner/order_times.h"
#include "sim/planner/placed_problem.h"

namespace sluice::sim {

// Simulated annealing over orders. A move shifts an op along its rank's list, mostly an op of the critical path past
// the one that it waits for; where a B takes less than I and W, moves also join and split them. Only orders within the
// limits are evaluated, and an evaluation ends as soon as the order is known to be too slow.
class OrderSearch {
 public:
  // Keeps references to the arguments. `tails` by op, as of auto_bounds. `start` must keep the limits and not deadlock.
  OrderSearch(const PlacedProblem& problem, const OpTable& table, const std::vector<std::int64_t>& tails, Orders start,
              unsigned seed);

  // Tries `steps` moves while the temperature falls from `warmth` mean op times to zero, then returns to the best
  // order. Stops early when the makespan reaches `goal`, or when `stop`, called every 64 steps, returns true.
  void anneal(std::int64_t steps, double warmth, std::int64_t goal, const std::function<bool()>& stop);

  std::int64_t best() const { return best_makespan_; }
  const Orders& best_orders() const { return best_; }
  std::int64_t evaluations() const { return times_.runs(); }

 private:
  struct Move {
    std::size_t rank = 0;
    std::size_t from = 0;
    std::size_t to = 0;
  };
  void update_path();
  Move propose();
  bool shift(const Move& move);  // returns false and changes nothing if order or memory forbid it
  bool join_or_split(std::int64_t most);
  std::int64_t pick(std::int64_t below);

  const PlacedProblem& problem_;
  const OpTable& table_;
  OrderTimes times_;
  std::mt19937_64 random_;
  Orders orders_;
  std::int64_t makespan_ = 0;
  Orders best_;
  std::int64_t best_makespan_ = 0;
  std::vector<OrderTimes::Step> path_;  // of orders_, from its end backwards
  bool joins_ = false;
  double mean_ = 1;
};

}  // namespace sluice::sim
