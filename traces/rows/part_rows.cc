#include "traces/rows/part_rows.h"

#include <cmath>

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

}  // namespace sluice::traces
