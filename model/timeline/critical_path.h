// Public header.
#pragma once

#include <vector>

#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"

namespace sluice::model {

// A longest path through the timeline: each vertex began when the one before it was done.
struct CriticalPath {
  std::vector<VertexId> vertices;  // in the order of time
  // Shares of the makespan; they add up to it exactly.
  Duration compute{};   // ops and recomputation
  Duration transfer{};  // in the queue for a shared link, and on the wire
  Duration latency{};   // on the way after the wire
  Duration collective{};
  Duration optimizer{};
  Duration idle{};  // a vertex began later than it could (measured timelines only)
};

// The path that ends last. Among needs that were met at the same time it follows the one named first.
CriticalPath critical_path(const OpGraph& graph, const Timeline& timeline);

// By vertex: how much later it could have ended without a later makespan, everything else taking as long as it did and
// lanes keeping their order. 0 on every critical path.
std::vector<Duration> slack(const OpGraph& graph, const Timeline& timeline);

}  // namespace sluice::model
