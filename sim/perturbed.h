#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/cost/price.h"
#include "model/graph/op_graph.h"
#include "model/scenario/perturbation.h"

namespace sluice::sim {

// Makes the slow ranks and links of `perturbation` slower in `prices`. Throws InputError for a rank that the graph does
// not have, or two between which nothing is sent.
void slow_down(const OpGraph& graph, const Perturbation& perturbation, Prices& prices);

// Makespans of a number of trials.
struct Trials {
  std::vector<Duration> makespans;  // ascending
  double mean_s = 0;
  double deviation_s = 0;  // standard, of the sample; 0 for one trial

  // The value below which a share `q` of the trials lies, linear between neighbours. 0 <= q <= 1.
  Duration quantile(double q) const;
};

// Simulates `perturbation.trials` times, each with its own draw of the jitter on every duration. Trial i depends on
// seed and i alone, so that the answer is the same on any number of threads. `progress` is called with the number of
// trials done, from any thread. Precondition: at least one trial.
Trials run_trials(const OpGraph& graph, const Prices& prices, const Perturbation& perturbation,
                  const std::function<void(std::int64_t)>& progress = {});

}  // namespace sluice::sim
