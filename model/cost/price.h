// Public header.
#pragma once

#include <vector>

#include "model/cost/cost_model.h"
#include "model/graph/op_graph.h"
#include "model/units.h"

namespace sluice::model {

// An OpGraph's durations under one cost model.
struct Prices {
  std::vector<Duration> duration;      // by vertex: how long it occupies its lanes
  std::vector<Duration> lane_latency;  // by lane: a transfer arrives this long after it has left its lane
  LinkSharing sharing;  // by link lane, the first being lane 2 num_ranks; empty: durations hold as they are
};

// Asks `cost` once for each kind of op, stage and slice, and rounds each answer once to nanoseconds. Throws InputError
// naming the op whose time is negative, not finite, or past 1e8 s, or if all of it together could pass 126 years.
Prices price(const OpGraph& graph, const CostModel& cost);

// The same where it is known what the links share, from pricing another graph of the same links on the same cluster.
Prices price(const OpGraph& graph, const CostModel& cost, const LinkSharing& sharing);

// Throws InputError if all durations and latencies together could pass 126 years, which is what makes sums of them
// safe. `price` has checked it; whoever makes prices longer checks again.
void check_total(const OpGraph& graph, const Prices& prices);

}  // namespace sluice::model
