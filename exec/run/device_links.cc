#include "exec/run/device_links.h"

#include <stdexcept>

#include "model/to_size.h"

namespace sluice::exec {
RunLinks::RunLinks(const RunPlan& plan) : plan_(plan) {
  const RunLayout& layout = plan.layout();
  const OpGraph& graph = plan.graph();
  for (const Lane& lane : graph.lanes()) {
    lane_edges_.push_back(links_.edges.size());
    if (lane.kind != LaneKind::link) continue;
    for (int d = 0; d < layout.data; ++d) {
      for (int t = 0; t < layout.tensor; ++t) {
        links_.edges.emplace_back(layout.world_rank(lane.rank, d, t), layout.world_rank(lane.peer, d, t));
      }
    }
  }
  for (int rank = 0; rank < layout.size(); ++rank) {
    std::vector<int> tensor;
    for (int t = 0; t < layout.tensor; ++t) {
      tensor.push_back(layout.world_rank(layout.pipeline_rank(rank), layout.data_rank(rank), t));
    }
    add_group(Purpose::tensor, tensor);
  }
  if (plan.has_experts()) add_expert_groups();
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind != VertexKind::collective) continue;
    const Collective collective = graph.collective(graph[v]);
    for (const int rank : collective.ranks) {
      for (int d = 0; d < layout.data; ++d) {
        for (int t = 0; t < layout.tensor; ++t) {
          add_group(purpose_of(collective), members(v, layout.world_rank(rank, d, t)));
        }
      }
    }
  }
}

RunLinks::Purpose RunLinks::purpose_of(const Collective& collective) {
  return collective.kind == CollectiveKind::gradient_reduce ? Purpose::data : Purpose::shared;
}

std::vector<int> RunLinks::members(VertexId v, int world_rank) const {
  const RunLayout& layout = plan_.layout();
  const OpGraph& graph = plan_.graph();
  const Collective collective = graph.collective(graph[v]);
  const int data_rank = layout.data_rank(world_rank);
  const int tensor_rank = layout.tensor_rank(world_rank);
  std::vector<int> out;
  if (collective.kind == CollectiveKind::gradient_reduce) {
    for (int d = 0; d < layout.data; ++d) {
      out.push_back(layout.world_rank(layout.pipeline_rank(world_rank), d, tensor_rank));
    }
    return out;
  }
  // The norm is over all tensor ranks, and with experts over all replicas, which hold different ones; replicas and tied
  // embeddings are reduced between corresponding shards.
  const bool all = collective.kind == CollectiveKind::global_norm;
  for (const int rank : collective.ranks) {
    for (int d = 0; d < layout.data; ++d) {
      if (d != data_rank && !(all && plan_.has_experts())) continue;
      for (int t = 0; t < layout.tensor; ++t) {
        if (all || t == tensor_rank) out.push_back(layout.world_rank(rank, d, t));
      }
    }
  }
  return out;
}

std::vector<int> RunLinks::expert_members(int world_rank) const {
  const RunLayout& layout = plan_.layout();
  const int mine = layout.group_rank(world_rank);
  std::vector<int> out;
  for (int i = 0; i < layout.expert; ++i) out.push_back(world_rank - mine % layout.expert + i);
  return out;
}

std::vector<int> RunLinks::expert_data_members(int world_rank) const {
  const RunLayout& layout = plan_.layout();
  const int mine = layout.group_rank(world_rank);
  std::vector<int> out;
  for (int i = mine % layout.expert; i < layout.data * layout.tensor; i += layout.expert) {
    out.push_back(world_rank - mine + i);
  }
  return out;
}

void RunLinks::add_expert_groups() {
  for (const Purpose purpose : {Purpose::experts, Purpose::woven_experts}) {
    if (purpose == Purpose::woven_experts && !plan_.has_woven_blocks()) continue;
    for (int rank = 0; rank < plan_.layout().size(); ++rank) {
      const std::size_t before = links_.groups.size();
      add_group(purpose, expert_members(rank));
      if (links_.groups.size() > before) links_.exchanges.push_back(before);
    }
  }
  for (int rank = 0; rank < plan_.layout().size(); ++rank) add_group(Purpose::expert_data, expert_data_members(rank));
}

std::size_t RunLinks::expert_group(int world_rank, bool woven) const {
  return find_group(woven ? Purpose::woven_experts : Purpose::experts, expert_members(world_rank));
}

std::size_t RunLinks::expert_data_group(int world_rank) const {
  return find_group(Purpose::expert_data, expert_data_members(world_rank));
}

void RunLinks::add_group(Purpose purpose, const std::vector<int>& members) {
  if (members.size() < 2 || find_group(purpose, members) != kAlone) return;
  links_.groups.push_back(members);
  purposes_.push_back(purpose);
}

std::size_t RunLinks::find_group(Purpose purpose, const std::vector<int>& members) const {
  for (std::size_t i = 0; i < purposes_.size(); ++i) {
    if (purposes_[i] == purpose && links_.groups[i] == members) return i;
  }
  return kAlone;
}

std::size_t RunLinks::edge_of(VertexId transfer, int world_rank) const {
  const RunLayout& layout = plan_.layout();
  return lane_edges_[plan_.graph()[transfer].lane] +
         to_size(layout.data_rank(world_rank) * layout.tensor + layout.tensor_rank(world_rank));
}

std::size_t RunLinks::tensor_group(int world_rank) const {
  const RunLayout& layout = plan_.layout();
  std::vector<int> tensor;
  for (int t = 0; t < layout.tensor; ++t) {
    tensor.push_back(layout.world_rank(layout.pipeline_rank(world_rank), layout.data_rank(world_rank), t));
  }
  return find_group(Purpose::tensor, tensor);
}

std::size_t RunLinks::group_of(VertexId collective, int world_rank) const {
  const OpGraph& graph = plan_.graph();
  return find_group(purpose_of(graph.collective(graph[collective])), members(collective, world_rank));
}

}  // namespace sluice::exec
