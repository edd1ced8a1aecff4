#pragma once

#include <cstdint>
#include <functional>
#include <random>

#include "sim/planner/order_times.h"
#include "sim/planner/placed_problem.h"

namespace sluice::sim {

// Simulated annealing over orders: an op moves along its rank's list, most often one on a longest path to before or
// after what holds it up; where a B takes less than I and W, they also join and part. Only orders that keep the limits
// are looked at, and one that cannot be as fast as is asked for is given up as soon as that shows.
class OrderSearch {
 public:
  // Refers to all of these. `tails` by op, as of auto_bounds. `start` must keep the limits and run.
  OrderSearch(const PlacedProblem& problem, const OpTable& table, const std::vector<std::int64_t>& tails, Orders start,
              unsigned seed);

  // `steps` moves tried, the temperature falling from `warmth` mean op times to nothing; then back to the best. Stops
  // early at `goal`, or when `stop`, asked now and then, says so.
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
  void look_at_path();
  Move propose();
  bool shift(const Move& move);  // false, and nothing changed, if order or memory forbid it
  bool join_or_part(std::int64_t most);
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
