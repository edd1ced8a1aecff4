// Public header.
#pragma once

#include <vector>

#include "model/cost/woven_blocks.h"
#include "model/timeline/timeline.h"

namespace sluice::traces {

// A part of a layer with experts within an op or a joint block, on the compute or the communication lane of its rank.
struct PartRow {
  VertexId vertex = 0;  // the op or block
  int rank = 0;
  PassPart part;
  int layer = 0;  // as in WovenPart
  Duration start{};
  Duration end{};
};

// Returns the parts of all ops of a timeline, in the order of vertex ids. An op that took longer or shorter than its
// price has longer or shorter parts.
std::vector<PartRow> part_rows(const OpGraph& graph, const CostModel& cost, const Timeline& timeline);

}  // namespace sluice::traces
