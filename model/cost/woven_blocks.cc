#include "model/cost/woven_blocks.h"

#include <utility>

namespace sluice::model {

WovenBlocks::WovenBlocks(const OpGraph& graph, const CostModel& cost) : graph_(graph), cost_(cost) {}

WovenBlocks::OpClass WovenBlocks::class_of(const Vertex& vertex) const {
  return {cost_.alike(vertex.stage), graph_.schedule().shape_index(vertex.microbatch), vertex.slice, vertex.op};
}

WovenBlock WovenBlocks::query(const Vertex& vertex) const {
  const Schedule& schedule = graph_.schedule();
  const auto shape = [&](const Vertex& op) -> const MicrobatchShape& { return schedule.shape(op.microbatch); };
  WovenBlock block;
  if (vertex.kind == VertexKind::joint) {
    const Vertex& partner = graph_.joint_partner(vertex);
    const Vertex& forward = vertex.op == OpKind::F ? vertex : partner;
    const Vertex& backward = vertex.op == OpKind::F ? partner : vertex;
    block = cost_.woven_joint(forward.stage, shape(forward), forward.slice, backward.op, backward.stage,
                              shape(backward), backward.slice);
  } else if (vertex.kind == VertexKind::recompute) {
    block = cost_.woven_recompute(vertex.stage, shape(vertex), vertex.slice);
  } else {
    block = cost_.woven_op(vertex.op, vertex.stage, shape(vertex), vertex.slice);
  }
  return block.communication_s > 0 ? block : WovenBlock{};
}

const WovenBlock& WovenBlocks::of(VertexId v) {
  static const WovenBlock kNone;
  const Vertex& vertex = graph_[v];
  OpClass partner{-1, 0, 0, OpKind::F};
  switch (vertex.kind) {
    case VertexKind::compute: break;
    case VertexKind::recompute: std::get<0>(partner) = -2; break;
    case VertexKind::joint: partner = class_of(graph_.joint_partner(vertex)); break;
    default: return kNone;
  }
  const std::pair key(class_of(vertex), partner);
  const auto [found, added] = known_.try_emplace(key);
  if (added) found->second = query(vertex);
  return found->second;
}

std::vector<WovenBlocks::Communication> WovenBlocks::by_rank() {
  std::vector<Communication> out(static_cast<std::size_t>(graph_.schedule().num_ranks()));
  for (VertexId v = 0; v < graph_.size(); ++v) {
    const WovenBlock& block = of(v);
    Communication& rank = out[static_cast<std::size_t>(graph_.rank_of(v))];
    rank.seconds += block.communication_s;
    rank.exposed_s += block.exposed_s;
  }
  return out;
}

}  // namespace sluice::model
