#include "sim/engine/sweep.h"

#include <algorithm>

namespace sluice::sim {

template <bool Steps>
void sweep(const OpGraph& graph, const Prices& prices, LaneTimes& lane_free, std::vector<Duration>* start,
           std::vector<Duration>& done) {
  const auto vertices = graph.vertices();
  const VertexId n = graph.size();
  done.resize(n);
  if (start != nullptr) start->resize(n);
  for (VertexId v = 0; v < n; ++v) {
    const Vertex& vertex = vertices[v];
    const auto lane = static_cast<std::size_t>(vertex.lane);
    Duration begin = lane_free[lane];
    if (vertex.kind == VertexKind::transfer) {
      // The first dependency is the data, then come the queues. The order edge after them is covered by lane_free, as
      // its `done` would add the latency of the previous transfer.
      const VertexId* const needs = graph.needs(v).data();
      for (std::uint32_t i = 0; i <= vertex.extra; ++i) begin = std::max(begin, done[needs[i]]);
      const Duration end = begin + prices.duration[v];
      lane_free[lane] = end;
      done[v] = end + prices.lane_latency[lane];
    } else if (vertex.kind == VertexKind::collective) {
      if (!Steps) continue;
      for (const VertexId need : graph.needs(v)) begin = std::max(begin, done[need]);
      const Duration end = begin + prices.duration[v];
      for (const int rank : graph.collective(vertex).ranks) {
        auto& free = lane_free[graph.collective_lane(rank)];
        free = std::max(free, end);
      }
      done[v] = end;
    } else {
      if (!Steps && vertex.kind == VertexKind::optimizer) {
        // Omitted, but later vertices of the lane still wait for earlier ones.
        done[v] = begin;
        continue;
      }
      for (const VertexId need : graph.needs(v)) begin = std::max(begin, done[need]);
      const Duration end = begin + prices.duration[v];
      lane_free[lane] = end;
      done[v] = end;
    }
    if (start != nullptr) (*start)[v] = begin;
  }
}

template void sweep<true>(const OpGraph&, const Prices&, LaneTimes&, std::vector<Duration>*, std::vector<Duration>&);
template void sweep<false>(const OpGraph&, const Prices&, LaneTimes&, std::vector<Duration>*, std::vector<Duration>&);

}  // namespace sluice::sim
