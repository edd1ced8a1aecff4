// Public header.
#pragma once

#include <vector>

#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"

namespace sluice::model {

struct RankMetrics {
  Duration busy{};         // compute lane: ops, recomputation, optimizer
  Duration first_start{};  // of an op of the schedule
  Duration last_end{};
  double peak_in_flight = 0;  // in microbatches through 1/num_ranks of the layers
};

// Metrics of a timeline. Makespan, span and the two bubble fractions are defined in docs/architecture.md.
struct Metrics {
  Duration makespan{};           // from first start to last end over all ranks and lanes
  Duration ideal{};              // the busiest rank's own compute
  Duration span{};               // largest last_end - first_start of a rank
  double bubble_fraction = 0;    // 1 - sum busy / (ranks * makespan)
  double bubble_over_ideal = 0;  // makespan / ideal - 1
  std::vector<RankMetrics> ranks;
};

Metrics measure(const OpGraph& graph, const Timeline& timeline);

// Computes what follows from the makespan and the times of the ranks: ideal, span and the bubble fractions.
void complete(Metrics& metrics);

// Returns the maximum of activations that `rank` stores at a time, from the order alone: an F adds its part
// (1/num_chunks of its slice's part of the microbatch) when it starts; the B, or with split backward the W, removes it
// when it ends.
double peak_in_flight(const Schedule& schedule, int rank);

}  // namespace sluice::model
