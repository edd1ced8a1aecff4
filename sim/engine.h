#pragma once

#include "model/cost/price.h"
#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"

namespace sluice::sim {

// Runs the priced graph: every vertex starts when what it needs has ended or arrived and its lanes are free. Lanes
// serve their vertices in order, so times are longest paths and one sweep in id order finds them; no event queue,
// unless transfers on links that share something get in each other's way (contention.h).
// Precondition: `prices` were made for `graph`.
Timeline simulate(const OpGraph& graph, const Prices& prices);

// The same as if no links shared anything.
Timeline simulate_unshared(const OpGraph& graph, const Prices& prices);

}  // namespace sluice::sim
