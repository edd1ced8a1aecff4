// Public header.
#pragma once

#include <span>
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

// Dispatch and combine of a rank or of a run, and the part of it during which the same rank computes another part.
struct HiddenCommunication {
  Duration all{};
  Duration hidden{};
  double fraction() const { return all.count() == 0 ? 0 : to_seconds(hidden) / to_seconds(all); }
};

// Returns per part of `parts` the time during which it is hidden: 0 for a part that computes. Within each rank and lane
// the parts must be in time order, as those of part_rows are.
std::vector<Duration> hidden_times(std::span<const PartRow> parts, int num_ranks);

// Returns the dispatch and combine of each rank.
std::vector<HiddenCommunication> hidden_by_rank(std::span<const PartRow> parts, int num_ranks);
// Returns the dispatch and combine of all ranks together.
HiddenCommunication hidden_of_run(std::span<const PartRow> parts, int num_ranks);

}  // namespace sluice::traces
