// Public header.
#pragma once

#include <vector>

#include "model/graph/op_graph.h"
#include "model/units.h"

namespace sluice::model {

// When every vertex of an OpGraph ran, predicted or measured. Times count from the first start, which is 0.
struct Timeline {
  std::vector<Duration> start;         // by vertex
  std::vector<Duration> end;           // by vertex; of a transfer: when its lanes are free again
  std::vector<Duration> lane_latency;  // by lane: a transfer has arrived this long after its end

  Duration arrival(const OpGraph& graph, VertexId v) const { return end[v] + lane_latency[graph[v].lane]; }
};

}  // namespace sluice::model
