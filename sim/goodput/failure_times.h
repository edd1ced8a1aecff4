#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "sim/goodput/trial.h"

namespace sluice::sim {

// The failures of all units of a run, in order. Exponential causes are one Poisson process. The units of a Weibull
// cause that have not failed yet are alike: the first of n fails when their common cumulative hazard has grown by an
// exponential number over n. Units that failed are renewals in a heap.
class FailureTimes {
 public:
  FailureTimes(const std::vector<FailureCause>& causes, RandomStream random);

  // Seconds of exposure until the next failure, from the begin of the run; infinite without failures.
  double next_s() const { return next_s_; }
  // Returns the cause of the next failure, and draws the one after it.
  std::size_t take();
  // Failures per second of exposure, and whether the cause is one of these.
  double exponential_rate() const { return rate_; }
  bool is_exponential(std::size_t cause) const;

 private:
  struct Cohort {  // units that have not failed yet
    std::size_t cause = 0;
    double units = 0;
    double hazard = 0;
    double next_s = 0;
  };
  using Renewal = std::pair<double, std::size_t>;  // seconds, cause

  void draw_exponential();
  void draw_first(Cohort& cohort);
  void find_next();

  const std::vector<FailureCause>* causes_;
  RandomStream random_;
  double rate_ = 0;
  double exponential_s_ = 0;
  std::vector<std::pair<double, std::size_t>> sums_;  // of rates, with the cause
  static constexpr std::size_t kGuides = 256;
  std::array<std::size_t, kGuides> first_{};  // sum that a part of the whole rate may be below
  std::vector<Cohort> cohorts_;
  std::priority_queue<Renewal, std::vector<Renewal>, std::greater<>> renewals_;
  double next_s_ = 0;
};

}  // namespace sluice::sim
