#include "exec/measure/measured_timeline.h"

#include <algorithm>
#include <limits>

namespace sluice::exec {
namespace {

struct Times {
  std::int64_t start = 0;
  std::int64_t end = 0;
};

Times times_of(const OpGraph& graph, std::span<const WorkerClock> workers, VertexId v) {
  const Vertex& vertex = graph[v];
  const Lane& lane = graph.lanes()[vertex.lane];
  if (vertex.kind == VertexKind::transfer) {
    return {workers[lane.rank].starts[v], workers[lane.peer].ends[v]};
  }
  if (vertex.kind != VertexKind::collective) {
    const WorkerClock& own = workers[lane.rank];
    return {own.starts[v], own.ends[v]};
  }
  Times times{0, std::numeric_limits<std::int64_t>::max()};
  for (const int rank : graph.collective(vertex).ranks) {
    times.start = std::max(times.start, workers[rank].starts[v]);
    times.end = std::min(times.end, workers[rank].ends[v]);  // 0 if a rank has no result
  }
  return times;
}

}  // namespace

Timeline measured_timeline(const OpGraph& graph, std::span<const WorkerClock> workers) {
  Timeline timeline;
  timeline.start.resize(graph.size());
  timeline.end.resize(graph.size());
  timeline.lane_latency.assign(graph.lanes().size(), Duration{0});
  std::vector<std::int64_t> lane_free(graph.lanes().size(), 0);
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (VertexId v = 0; v < graph.size(); ++v) {
    Times times = times_of(graph, workers, v);
    if (times.start == 0 || times.end == 0) continue;
    // The clocks of two ranks agree to some microseconds only: an end on one may seem to precede the start on another.
    times.start = std::min(times.start, times.end);
    std::int64_t& free = lane_free[graph[v].lane];
    if (graph[v].kind == VertexKind::transfer) {
      times.end = std::max(times.end, free);
      times.start = std::clamp(times.start, std::min(free, times.end), times.end);
      free = times.end;
    }
    timeline.start[v] = Duration(times.start);
    timeline.end[v] = Duration(times.end);
    first = std::min(first, times.start);
  }
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (timeline.end[v] == Duration{0}) continue;
    timeline.start[v] -= Duration(first);
    timeline.end[v] -= Duration(first);
  }
  return timeline;
}

std::vector<VertexPart> measured_parts(const OpGraph& graph, std::span<const WorkerClock> workers) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Times times = times_of(graph, workers, v);
    if (times.start > 0 && times.end > 0) first = std::min({first, times.start, times.end});
  }
  std::vector<VertexPart> parts;
  for (const WorkerClock& worker : workers) {
    for (VertexPart part : worker.parts) {
      if (worker.ends[part.vertex] == 0) continue;
      part.time.start_ns -= first;
      part.time.end_ns -= first;
      parts.push_back(part);
    }
  }
  return parts;
}

std::vector<char> ended_vertices(const OpGraph& graph, std::span<const WorkerClock> workers) {
  std::vector<char> ended(graph.size(), 0);
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Times times = times_of(graph, workers, v);
    ended[v] = times.start > 0 && times.end > 0 ? 1 : 0;
  }
  return ended;
}

}  // namespace sluice::exec
