#include "exec/measure/measured_timeline.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "model/to_size.h"
#include "model/weave/weave.h"

namespace sluice::exec {
namespace {

double exchange_seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

// Time of the exchanges during which a part is computed. The parts of a lane do not overlap each other.
double hidden_in_op(std::span<const VertexPart> parts) {
  std::int64_t hidden = 0;
  for (const auto& [vertex, exchange] : parts) {
    if (!communicates(exchange.part)) continue;
    for (const auto& [same, compute] : parts) {
      if (communicates(compute.part)) continue;
      const auto from = std::max(exchange.start_ns, compute.start_ns);
      hidden += std::max(std::int64_t{0}, std::min(exchange.end_ns, compute.end_ns) - from);
    }
  }
  return exchange_seconds(hidden);
}

double predicted_hidden(const Weave& weave, std::span<const VertexPart> parts) {
  std::vector<LayerTimes> forward;
  std::vector<LayerTimes> backward;
  for (const auto& [vertex, time] : parts) {
    std::vector<LayerTimes>& layers = time.pass == PartPass::forward ? forward : backward;
    layers.resize(std::max(layers.size(), to_size(time.layer + 1)));
    constexpr std::array kOfPass = {OpKind::F, OpKind::B, OpKind::W};
    layers[to_size(time.layer)].of(kOfPass.at(static_cast<std::size_t>(time.pass)), time.part) +=
        exchange_seconds(time.end_ns - time.start_ns);
  }
  const WovenBlock block = weave_block(weave, forward, backward);
  return block.communication_s - block.exposed_s;
}

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

std::vector<ExchangeOverlap> exchange_overlap(const RunPlan& plan, std::span<const WorkerClock> clocks) {
  std::vector<ExchangeOverlap> out;
  for (std::size_t rank = 0; rank < clocks.size(); ++rank) {
    ExchangeOverlap& overlap = out.emplace_back();
    std::set<VertexId> woven;
    for (const PlannedStep& step : plan.rank(static_cast<int>(rank)).steps) {
      if (step.woven) woven.insert(step.vertex);
    }
    const std::vector<VertexPart>& parts = clocks[rank].parts;
    // The parts of an op are consecutive.
    for (auto begin = parts.begin(); begin != parts.end();) {
      const auto end =
          std::find_if(begin, parts.end(), [&](const VertexPart& part) { return part.vertex != begin->vertex; });
      const std::span<const VertexPart> of_op(begin, end);
      for (const auto& [vertex, time] : of_op) {
        if (communicates(time.part)) overlap.seconds += exchange_seconds(time.end_ns - time.start_ns);
      }
      if (woven.count(begin->vertex) > 0) {
        overlap.hidden_s += hidden_in_op(of_op);
        overlap.predicted_hidden_s += predicted_hidden(plan.spec().weave, of_op);
      }
      begin = end;
    }
  }
  return out;
}

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
