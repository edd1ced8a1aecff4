#pragma once

#include <vector>

#include "model/graph/op_graph.h"

namespace sluice::model {

// The lanes between ranks: one for each ordered pair of ranks with neighboring stages, and, with vocabulary passes, of
// the rank of the last stage and another.
struct Links {
  static constexpr LaneId kSameRank = -1;

  std::vector<Lane> lanes;       // by (sender, receiver)
  std::vector<LaneId> forward;   // by (route, stage): the lane to the next stage; kSameRank if it is on the same rank
  std::vector<LaneId> backward;  // the same for the previous stage
  // With vocabulary passes, by rank: the lanes from and to the rank of the last stage. Statistics return to the ranks
  // on lanes of their own, as they wait for all ranks, and what the root sends next does not wait for them.
  std::vector<LaneId> from_root;
  std::vector<LaneId> to_root;
  std::vector<LaneId> results;
};

// `first_lane` is the id of the first of these lanes.
Links make_links(const Schedule& schedule, LaneId first_lane);

// The number of lanes between ranks.
int num_links(const OpGraph& graph);

// Whether the vertex is a collective of the replicas of one rank: a gradient reduction or a gather of parameters.
bool is_data_collective(const OpGraph& graph, const Vertex& vertex);

}  // namespace sluice::model
