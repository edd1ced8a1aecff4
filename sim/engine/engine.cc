#include "sim/engine/engine.h"

#include "sim/engine/contention.h"
#include "sim/engine/sweep.h"

namespace sluice::sim {

Timeline simulate(const OpGraph& graph, const Prices& prices) {
  bool contend = false;
  return simulate(graph, prices, contend);
}

Timeline simulate(const OpGraph& graph, const Prices& prices, bool& contend) {
  if (prices.sharing.empty() || !contend) {
    Timeline timeline = simulate_unshared(graph, prices);
    contend = !prices.sharing.empty() && contends(graph, prices, timeline);
    if (!contend) return timeline;
  }
  return simulate_contended(graph, prices, &contend);
}

Timeline simulate_unshared(const OpGraph& graph, const Prices& prices) {
  Timeline timeline;
  LaneTimes lane_free(graph.lanes().size(), Duration{0});
  sweep<true>(graph, prices, lane_free, &timeline.start, timeline.end);
  timeline.lane_latency = prices.lane_latency;
  // A timeline has the time at which a transfer leaves its lanes, the sweep that of its arrival.
  for (VertexId v = 0; v < graph.size(); ++v) timeline.end[v] = timeline.start[v] + prices.duration[v];
  return timeline;
}

}  // namespace sluice::sim
