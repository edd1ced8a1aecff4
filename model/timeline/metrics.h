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
  double peak_in_flight = 0;  // microbatches through 1/num_ranks of the layers
};

// What a timeline amounts to. Makespan, span and the two bubble fractions as in docs/architecture.md.
struct Metrics {
  Duration makespan{};           // first start to last end over all ranks and lanes
  Duration ideal{};              // the busiest rank's own compute
  Duration span{};               // largest last_end - first_start of one rank
  double bubble_fraction = 0;    // 1 - sum busy / (ranks * makespan)
  double bubble_over_ideal = 0;  // makespan / ideal - 1
  std::vector<RankMetrics> ranks;
};

Metrics measure(const OpGraph& graph, const Timeline& timeline);

// The most activations `rank` holds at once, from the order alone: an F adds its share (1/num_chunks of its slice's
// share of the microbatch) when it starts; the B, or with split backward the W, takes it away when it ends.
double peak_in_flight(const Schedule& schedule, int rank);

}  // namespace sluice::model
