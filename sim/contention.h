#pragma once

#include <functional>
#include <vector>

#include "model/cost/price.h"
#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"
#include "sim/sweep.h"

namespace sluice::sim {

// The engine for links that share something (`prices.sharing`). It means what the sweep means: every vertex starts when
// what it needs has ended or arrived and its lanes are free, and lanes serve in order. But a transfer holds its lane
// until its bytes are through at the rates that the others leave it, and in a queue it starts only when its resources
// are free. Only the starts and ends of such transfers are events; whatever follows from them alone is known at once.
// Precondition: `prices` were made for `graph`.
Timeline simulate_contended(const OpGraph& graph, const Prices& prices);

// The same with each rank repeating its list up to `times` times without a barrier, collectives and optimizer steps
// left out. Calls `enough` with the lanes' times at the end of each repetition so far, whenever one more is complete on
// all lanes, until it returns true. Precondition: the schedule flushes, and times <= 65535.
void repeat_contended(const OpGraph& graph, const Prices& prices, int times,
                      const std::function<bool(const std::vector<LaneTimes>&)>& enough);

// Whether transfers get in each other's way in a timeline that was made as if nothing were shared. If not, it is what
// `simulate_contended` answers: as long as nobody slows a transfer down, it takes what it is priced at.
bool crowded(const OpGraph& graph, const Prices& prices, const Timeline& alone);

}  // namespace sluice::sim
