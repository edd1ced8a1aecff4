#include "model/timeline/critical_path.h"

#include <algorithm>
#include <utility>

#include "model/timeline/causes.h"

namespace sluice::model {

void CriticalPath::add(VertexKind kind, Duration duration) {
  switch (kind) {
    case VertexKind::compute:
    case VertexKind::joint:
    case VertexKind::recompute: compute += duration; break;
    case VertexKind::transfer:
    case VertexKind::offload: transfer += duration; break;
    case VertexKind::collective: collective += duration; break;
    case VertexKind::optimizer: optimizer += duration; break;
  }
}

VertexId last_to_end(const OpGraph& graph, const Timeline& timeline) {
  VertexId last = 0;
  for (VertexId v = 1; v < graph.size(); ++v) {
    if (std::pair(timeline.end[last], graph[v].lane) < std::pair(timeline.end[v], graph[last].lane)) last = v;
  }
  return last;
}

CriticalPath critical_path(const OpGraph& graph, const Timeline& timeline) {
  CriticalPath path;
  if (graph.size() == 0) return path;
  VertexId v = last_to_end(graph, timeline);
  while (true) {
    path.vertices.push_back(v);
    const Duration start = timeline.start[v];
    path.add(graph[v].kind, timeline.end[v] - start);
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
