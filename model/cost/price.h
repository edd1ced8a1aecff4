// Public header.
#pragma once

#include <vector>

#include "model/cost/cost_model.h"
#include "model/graph/op_graph.h"
#include "model/units.h"

namespace sluice::model {

// The durations of an OpGraph under a cost model.
struct Prices {
  std::vector<Duration> duration;      // by vertex: the time for which it occupies its lanes
  std::vector<Duration> lane_latency;  // by lane: the time from the end of a transfer until it arrives
  // By link lane, the first being lane 2 num_ranks, and, if the graph has any, of the data-parallel collectives of each
  // rank; empty: durations do not depend on other transfers.
  LinkSharing sharing;
};

// Queries `cost` once per kind of op, stage and slice, and rounds each result once to nanoseconds. Throws InputError
// naming the op whose time is negative, not finite, or above 1e8 s, if the sum of all could exceed 126 years, or if
// rounding changes them by more than 1 %.
Prices price(const OpGraph& graph, const CostModel& cost);

// The same with a known `sharing`, from pricing another graph with the same links on the same cluster.
Prices price(const OpGraph& graph, const CostModel& cost, const LinkSharing& sharing);

// Throws InputError if the sum of all durations and latencies could exceed 126 years; below that, sums of them cannot
// overflow. `price` checks it; code that increases prices must check again.
void check_total(const OpGraph& graph, const Prices& prices);

}  // namespace sluice::model
