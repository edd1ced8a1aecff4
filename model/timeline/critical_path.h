// Public header.
#pragma once

#include <vector>

#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"

namespace sluice::model {

// A critical path of the timeline: each vertex started when the one before it was complete.
struct CriticalPath {
  std::vector<VertexId> vertices;  // in order of time
  // The components of the makespan, which they add up to exactly.
  Duration compute{};   // ops and recomputation
  Duration transfer{};  // in the queue for a shared link, and on the wire
  Duration latency{};   // from the end on the wire until arrival
  Duration collective{};
  Duration optimizer{};
  Duration idle{};  // a vertex started later than it could have (measured timelines only)

  // Adds the duration of a vertex to that of its kind.
  void add(VertexKind kind, Duration duration);
};

// Returns the vertex that ends last, of several the one on the lowest lane. Precondition: the graph has vertices.
VertexId last_to_end(const OpGraph& graph, const Timeline& timeline);

// Returns the path that ends last, of several that on the lowest lane. Of needs that were satisfied at the same time it
// follows the first.
CriticalPath critical_path(const OpGraph& graph, const Timeline& timeline);

// Returns by vertex how much later it could have ended without increasing the makespan, if all other durations and the
// orders of lanes stay the same. 0 on every critical path.
std::vector<Duration> slack(const OpGraph& graph, const Timeline& timeline);

}  // namespace sluice::model
