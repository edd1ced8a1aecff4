#include "model/timeline/critical_path.h"

#include <algorithm>
#include <utility>

#include "model/timeline/causes.h"

namespace sluice::model {

CriticalPath critical_path(const OpGraph& graph, const Timeline& timeline) {
  CriticalPath path;
  if (graph.size() == 0) return path;
  VertexId v = 0;
  for (VertexId other = 1; other < graph.size(); ++other) {
    if (std::pair(timeline.end[v], graph[other].lane) < std::pair(timeline.end[other], graph[v].lane)) v = other;
  }
  while (true) {
    path.vertices.push_back(v);
    const Duration start = timeline.start[v];
    const Duration duration = timeline.end[v] - start;
    switch (graph[v].kind) {
      case VertexKind::compute:
      case VertexKind::joint:
      case VertexKind::recompute: path.compute += duration; break;
      case VertexKind::transfer:
      case VertexKind::offload: path.transfer += duration; break;
      case VertexKind::collective: path.collective += duration; break;
      case VertexKind::optimizer: path.optimizer += duration; break;
    }
    if (start <= Duration::zero()) break;
    const LastNeed need = last_need(graph, timeline, v);
    // All of it if nothing was needed. A transfer that could have started earlier was queued for a link used by others.
    (graph[v].kind == VertexKind::transfer ? path.transfer : path.idle) += start - need.met;
    if (need.vertex == kNoVertex) break;
    path.latency += need.met - timeline.end[need.vertex];
    v = need.vertex;
  }
  std::reverse(path.vertices.begin(), path.vertices.end());
  return path;
}

std::vector<Duration> slack(const OpGraph& graph, const Timeline& timeline) {
  const VertexId n = graph.size();
  if (n == 0) return {};
  // The latest end of each vertex, computed from its last follower to its first.
  std::vector<Duration> latest(n, *std::max_element(timeline.end.begin(), timeline.end.end()));
  for (VertexId v = n; v-- > 0;) {
    const Duration latest_start = latest[v] - (timeline.end[v] - timeline.start[v]);
    const auto needs = graph.needs(v);
    for (std::size_t i = 0; i < needs.size(); ++i) {
      const Duration on_the_way = graph.is_order(v, i) ? Duration::zero() : timeline.lane_latency[graph[needs[i]].lane];
      latest[needs[i]] = std::min(latest[needs[i]], latest_start - on_the_way);
    }
  }
  for (VertexId v = 0; v < n; ++v) latest[v] -= timeline.end[v];
  return latest;
}

}  // namespace sluice::model
