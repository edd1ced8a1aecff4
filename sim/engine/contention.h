#pragma once

#include <functional>
#include <vector>

#include "model/cost/price.h"
#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"
#include "sim/engine/sweep.h"

namespace sluice::sim {

// Simulates a graph whose links share resources (`prices.sharing`). The rules are those of the sweep: a vertex starts
// when its dependencies have ended or arrived and its lanes are free, and lanes run their vertices in order. In
// addition, a transfer occupies its lane until all its bytes have moved at the rates that concurrent transfers leave
// it, and a queued transfer starts only when its resources are free. Data-parallel collectives on shared ports or cards
// are such transfers too, from one rank to itself. Only the starts and ends of such transfers are
// events; all other times follow from them without one. Sets `slowed`, if not null, to whether any transfer was slowed
// down or queued. Precondition: `prices` belong to `graph`.
Timeline simulate_contended(const OpGraph& graph, const Prices& prices, bool* slowed = nullptr);

// Likewise, but each rank repeats its list up to `times` times without a barrier, and collectives and optimizer steps
// are omitted. Whenever another repetition is complete on all lanes, calls `enough` with the lane times at the end of
// each complete repetition, until it returns true. Precondition: the schedule flushes, and times <= 65535.
void repeat_contended(const OpGraph& graph, const Prices& prices, int times,
                      const std::function<bool(const std::vector<LaneTimes>&)>& enough);

// Whether transfers contend for a resource in `unshared`, a timeline that was simulated as if links shared nothing. If
// not, `simulate_contended` returns the same timeline, as no transfer takes longer than its price.
bool contends(const OpGraph& graph, const Prices& prices, const Timeline& unshared);

}  // namespace sluice::sim
