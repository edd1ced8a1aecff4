#include "exec/measure/exchange_overlap.h"

#include <algorithm>
#include <array>
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

}  // namespace sluice::exec
