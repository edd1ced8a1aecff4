#pragma once

#include <vector>

#include "model/cost/price.h"
#include "model/graph/op_graph.h"

namespace sluice::sim {

// When each lane is free. Passed from one sweep to the next, ranks repeat their lists without a barrier.
using LaneTimes = std::vector<Duration>;

// Computes the times of all vertices in one pass. Writes each vertex's start and, to `done`, when its result is
// available: its end, or the arrival of a transfer. Updates `lane_free`. Without `Steps`, collectives and optimizer
// steps are omitted.
template <bool Steps>
void sweep(const OpGraph& graph, const Prices& prices, LaneTimes& lane_free, std::vector<Duration>* start,
           std::vector<Duration>& done);

extern template void sweep<true>(const OpGraph&, const Prices&, LaneTimes&, std::vector<Duration>*,
                                 std::vector<Duration>&);
extern template void sweep<false>(const OpGraph&, const Prices&, LaneTimes&, std::vector<Duration>*,
                                  std::vector<Duration>&);

}  // namespace sluice::sim
