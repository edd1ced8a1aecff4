#include "model/timeline/metrics.h"

#include <algorithm>

namespace sluice::model {

double peak_in_flight(const Schedule& schedule, int rank) {
  const OpKind release = schedule.split_backward() ? OpKind::W : OpKind::B;
  // Whole tokens where all microbatches have the same shape, so that the parts sum exactly.
  const bool alike = schedule.shapes().size() == 1;
  const MicrobatchShape& shape = schedule.shapes()[0];
  double held = 0;
  double peak = 0;
  const auto count = [&](const Op& op) {
    // A schedule may mix both forms: a B frees what it stores even where others split.
    if (op.kind != OpKind::F && op.kind != OpKind::B && op.kind != release) return;
    if (op.stage < schedule.encoder_stages()) return;
    const MicrobatchShape& cut = alike ? shape : schedule.shape(op.microbatch);
    auto share = static_cast<double>(cut.slice_lengths[op.slice]);
    if (!alike) share /= static_cast<double>(cut.tokens());
    peak = std::max(peak, held + (op.kind == OpKind::F ? share : -share));
    if (!cut.forward_only) held += op.kind == OpKind::F ? share : -share;
  };
  const auto list = schedule.ops(rank);
  for (std::size_t i = 0; i < list.size(); ++i) {
    // In a block the F allocates before the other op frees.
    const bool block_from_behind = list[i].joined && list[i].kind != OpKind::F;
    if (block_from_behind) count(list[i + 1]);
    count(list[i]);
    if (block_from_behind) ++i;
  }
  if (alike) peak /= static_cast<double>(shape.tokens());
  if (schedule.encoder_stages() > 0) return peak / schedule.num_chunks();
  return peak * schedule.num_ranks() / std::max(schedule.num_ranks(), schedule.num_stages());
}

Metrics measure(const OpGraph& graph, const Timeline& timeline) {
  const Schedule& schedule = graph.schedule();
  Metrics metrics;
  metrics.ranks.resize(schedule.num_ranks());
  std::vector<char> seen(metrics.ranks.size(), 0);
  Duration last{0};
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    last = std::max(last, timeline.end[v]);
    if (vertex.lane >= schedule.num_ranks()) continue;        // not a compute lane
    const auto rank = static_cast<std::size_t>(vertex.lane);  // compute lanes are numbered by rank
    RankMetrics& of = metrics.ranks[rank];
    of.busy += timeline.end[v] - timeline.start[v];
    if (vertex.kind == VertexKind::optimizer) continue;
    if (seen[rank] == 0) {
      seen[rank] = 1;
      of.first_start = timeline.start[v];
    }
    of.last_end = timeline.end[v];
  }
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    metrics.ranks[rank].peak_in_flight = peak_in_flight(schedule, rank);
  }
  metrics.makespan = last;
  complete(metrics);
  return metrics;
}

void complete(Metrics& metrics) {
  Duration busy{0};
  for (const RankMetrics& of : metrics.ranks) {
    busy += of.busy;
    metrics.ideal = std::max(metrics.ideal, of.busy);
    metrics.span = std::max(metrics.span, of.last_end - of.first_start);
  }
  const double all = static_cast<double>(metrics.makespan.count()) * static_cast<double>(metrics.ranks.size());
  metrics.bubble_fraction = all > 0 ? 1.0 - static_cast<double>(busy.count()) / all : 0.0;
  metrics.bubble_over_ideal =
      metrics.ideal.count() > 0
          ? static_cast<double>((metrics.makespan - metrics.ideal).count()) / static_cast<double>(metrics.ideal.count())
          : 0.0;
}

}  // namespace sluice::model
