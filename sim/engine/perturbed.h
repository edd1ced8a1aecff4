// Public header.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/cost/price.h"
#include "model/graph/op_graph.h"
#include "model/scenario/perturbation.h"

namespace sluice::sim {

// Applies the slow ranks and links of `perturbation` to `prices`. Throws InputError for a rank that is not in the
// graph, or for a pair of ranks without transfers between them.
void slow_down(const OpGraph& graph, const Perturbation& perturbation, Prices& prices);

// Distribution of the makespan over a number of trials.
struct Trials {
  std::vector<Duration> makespans;  // ascending
  double mean_s = 0;
  double deviation_s = 0;  // sample standard deviation; 0 for one trial

  // The quantile `q` in [0, 1], interpolated linearly between neighbors.
  Duration quantile(double q) const;
};

// Simulates `perturbation.trials` trials, each with an independent draw of the jitter on every duration and on the
// latency of every link. Trial i
// depends only on the seed and i, so the result is the same on any number of threads. `progress` is called with the
// number of finished trials, from any thread. Precondition: at least one trial.
Trials run_trials(const OpGraph& graph, const Prices& prices, const Perturbation& perturbation,
                  const std::function<void(std::int64_t)>& progress = {});

}  // namespace sluice::sim
