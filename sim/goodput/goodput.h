#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/goodput/trial.h"

namespace sluice::sim {

// A mean over trials, and its standard error.
struct Estimate {
  double mean = 0;
  double error = 0;
};

// The distribution of a run over trials.
struct GoodputSummary {
  std::vector<TrialResult> trials;
  // Useful time over wall clock. With exponential failures the mean is corrected by the number of failures, whose
  // expectation is known (a control variate), which makes the error smaller.
  Estimate goodput;
  Estimate ettr;  // the same, where slower iterations count as productive (arXiv 2410.21680)
  std::array<double, kTimeUses.size()> fractions{};  // mean fraction of the wall clock per TimeUse
  Estimate failures;
  Estimate wall_s;
  double finished = 0;           // fraction of trials that did all work
  std::vector<double> goodputs;  // ascending
  std::vector<double> walls_s;   // ascending

  double of(TimeUse use) const { return fractions[static_cast<std::size_t>(use)]; }
};

// Returns the quantile `q` in [0, 1] of ascending values, interpolated linearly between neighbors.
double quantile(std::span<const double> ascending, double q);

// Simulates independent trials on all cores. The result depends on the seed only. Precondition: at least one trial.
GoodputSummary simulate_goodput(const GoodputRun& run, std::uint64_t seed, std::int64_t trials);

// The interval between checkpoints with the highest goodput, and the range in which it is at most `tolerance` lower.
struct IntervalSearch {
  Duration best{};
  Duration low{};
  Duration high{};
  double goodput = 0;
};

// Searches intervals from `shortest` on by simulation of the same failures. Precondition: above 0.
IntervalSearch best_interval(const GoodputRun& run, Duration shortest, std::uint64_t seed, std::int64_t trials,
                             double tolerance);

// Returns the smallest number of spares with which a run waits for nodes at most `waiting` of its time, up to `most`.
int spares_for(GoodputRun run, double waiting, int most, std::uint64_t seed, std::int64_t trials);

}  // namespace sluice::sim
