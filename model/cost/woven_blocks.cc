#include "model/cost/woven_blocks.h"

namespace sluice::model {

WovenBlocks::WovenBlocks(const OpGraph& graph, const CostModel& cost)
    : graph_(graph), cost_(cost), classes_(graph.schedule(), cost), known_(classes_.count()) {}

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
  // What has no partner is numbered behind the classes.
  std::size_t partner = classes_.count();
  switch (vertex.kind) {
    case VertexKind::compute: break;
    case VertexKind::recompute: ++partner; break;
    case VertexKind::joint: partner = classes_.of(graph_.joint_partner(vertex)); break;
    default: return kNone;
  }
  return *known_.find(classes_.of(vertex), partner, [&] { return &blocks_.emplace_back(query(vertex)); });
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
