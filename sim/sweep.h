#pragma once

#include <vector>

#include "model/cost/price.h"
#include "model/graph/op_graph.h"

namespace sluice::sim {

// When each lane is free. Kept from one sweep to the next it makes ranks repeat their lists without a barrier.
using LaneTimes = std::vector<Duration>;

// One pass over the graph. Writes each vertex's start and, to `done`, when what it hands on is there: its end, of a
// transfer its arrival. Advances `lane_free`. With `Steps` false, collectives and optimizer steps are left out.
template <bool Steps>
void sweep(const OpGraph& graph, const Prices& prices, LaneTimes& lane_free, std::vector<Duration>* start,
           std::vector<Duration>& done);

extern template void sweep<true>(const OpGraph&, const Prices&, LaneTimes&, std::vector<Duration>*,
                                 std::vector<Duration>&);
extern template void sweep<false>(const OpGraph&, const Prices&, LaneTimes&, std::vector<Duration>*,
                                  std::vector<Duration>&);

}  // namespace sluice::sim
