// Public header.
#pragma once

#include <vector>

#include "model/graph/op_graph.h"
#include "model/units.h"

namespace sluice::model {

// The start and end of every vertex of an OpGraph, predicted or measured. Times are relative to the first start.
struct Timeline {
  std::vector<Duration> start;         // by vertex
  std::vector<Duration> end;           // by vertex; for a transfer: when it leaves its lanes
  std::vector<Duration> lane_latency;  // by lane: the time from the end of a transfer until it arrives

  Duration arrival(const OpGraph& graph, VertexId v) const { return end[v] + lane_latency[graph[v].lane]; }
};

}  // namespace sluice::model
