#include "traces/rows/part_rows.h"

#include <algorithm>
#include <cmath>

#include "model/to_size.h"

namespace sluice::traces {

std::vector<PartRow> part_rows(const OpGraph& graph, const CostModel& cost, const Timeline& timeline) {
  WovenBlocks blocks(graph, cost);
  std::vector<PartRow> rows;
  for (VertexId v = 0; v < graph.size(); ++v) {
    const WovenBlock& block = blocks.of(v);
    if (block.seconds == 0) continue;
    const auto length = static_cast<double>((timeline.end[v] - timeline.start[v]).count());
    const auto at = [&](double seconds) {
      return timeline.start[v] + Duration(std::llround(seconds / block.seconds * length));
    };
    for (const WovenPart& part : block.parts) {
      rows.push_back({.vertex = v,
                      .rank = graph.rank_of(v),
                      .part = part.part,
                      .layer = part.layer,
                      .start = at(part.start_s),
                      .end = at(part.end_s)});
    }
  }
  return rows;
}

std::vector<Duration> hidden_times(std::span<const PartRow> parts, int num_ranks) {
  struct Lanes {
    std::vector<std::size_t> compute;  // indices of parts
    std::vector<std::size_t> communication;
  };
  std::vector<Lanes> ranks(to_size(num_ranks));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Lanes& rank = ranks[to_size(parts[i].rank)];
    (communicates(parts[i].part.part) ? rank.communication : rank.compute).push_back(i);
  }
  std::vector<Duration> hidden(parts.size(), Duration{0});
  for (const Lanes& rank : ranks) {
    auto first = rank.compute.begin();
    for (const std::size_t i : rank.communication) {
      const PartRow& part = parts[i];
      while (first != rank.compute.end() && parts[*first].end <= part.start) ++first;
      for (auto other = first; other != rank.compute.end() && parts[*other].start < part.end; ++other) {
        hidden[i] += std::min(part.end, parts[*other].end) - std::max(part.start, parts[*other].start);
      }
    }
  }
  return hidden;
}

std::vector<HiddenCommunication> hidden_by_rank(std::span<const PartRow> parts, int num_ranks) {
  const std::vector<Duration> hidden = hidden_times(parts, num_ranks);
  std::vector<HiddenCommunication> ranks(to_size(num_ranks));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!communicates(parts[i].part.part)) continue;
    HiddenCommunication& rank = ranks[to_size(parts[i].rank)];
    rank.all += parts[i].end - parts[i].start;
    rank.hidden += hidden[i];
  }
  return ranks;
}

HiddenCommunication hidden_of_run(std::span<const PartRow> parts, int num_ranks) {
  HiddenCommunication run;
  for (const HiddenCommunication& rank : hidden_by_rank(parts, num_ranks)) {
    run.all += rank.all;
    run.hidden += rank.hidden;
  }
  return run;
}

}  // namespace sluice::traces
