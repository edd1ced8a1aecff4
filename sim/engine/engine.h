// Public header.
#pragma once

#include "model/cost/price.h"
#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"

namespace sluice::sim {

// Simulates the priced graph: a vertex starts when its dependencies have ended or arrived and its lanes are free. Lanes
// run their vertices in order, so times are longest paths, which one sweep in the order of ids finds without an event
// queue, unless transfers contend for shared links (contention.h). Precondition: `prices` belong to `graph`.
Timeline simulate(const OpGraph& graph, const Prices& prices);

// The same timeline. `contend` is whether transfers are expected to contend, which then need not be found out first; it
// is set to whether they do.
Timeline simulate(const OpGraph& graph, const Prices& prices, bool& contend);

// Likewise, as if links shared nothing.
Timeline simulate_unshared(const OpGraph& graph, const Prices& prices);

}  // namespace sluice::sim
