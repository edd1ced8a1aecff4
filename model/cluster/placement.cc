#include "model/cluster/placement.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/errors.h"

namespace sluice {
namespace {

// The worse to communicate in: over more nodes, then with fewer ways out of each.
Reach worse(const Reach& a, const Reach& b) {
  if (a.nodes != b.nodes) return a.nodes > b.nodes ? a : b;
  return a.per_node <= b.per_node ? a : b;
}

}  // namespace

Placement::Placement(const Training& training, const Cluster& cluster)
    : tp_(training.tp), dp_(training.dp), pp_(training.pp), gpus_per_node_(cluster.gpus_per_node) {
  if (training.world_size() > cluster.num_gpus()) {
    throw InputError(fmt::format("tp {} x dp {} x pp {} needs {} GPUs, but {} has {} ({} nodes of {})", tp_, dp_, pp_,
                                 training.world_size(), cluster.name.empty() ? "the cluster" : cluster.name,
                                 cluster.num_gpus(), cluster.nodes, cluster.gpus_per_node));
  }
  std::vector<int> ranks;
  bool first = true;
  for (int pipeline = 0; pipeline < pp_; ++pipeline) {
    for (int data = 0; data < dp_; ++data) {
      ranks.clear();
      for (int tensor = 0; tensor < tp_; ++tensor) ranks.push_back(world_rank(pipeline, data, tensor));
      tensor_ = first ? reach(ranks) : worse(tensor_, reach(ranks));
      first = false;
    }
  }
  first = true;
  for (int pipeline = 0; pipeline < pp_; ++pipeline) {
    for (int tensor = 0; tensor < tp_; ++tensor) {
      ranks.clear();
      for (int data = 0; data < dp_; ++data) ranks.push_back(world_rank(pipeline, data, tensor));
      data_ = first ? reach(ranks) : worse(data_, reach(ranks));
      first = false;
    }
  }
  const int world = static_cast<int>(training.world_size());
  const int rest = world % gpus_per_node_;  // on a last node that is not full
  world_ = {.size = world,
            .nodes = (world + gpus_per_node_ - 1) / gpus_per_node_,
            .per_node = rest > 0 ? rest : gpus_per_node_};
}

// Ranks increase, so those of one node are one run.
Reach Placement::reach(std::span<const int> world_ranks) const {
  Reach out{.size = static_cast<int>(world_ranks.size()), .nodes = 0, .per_node = static_cast<int>(world_ranks.size())};
  for (std::size_t begin = 0; begin < world_ranks.size();) {
    std::size_t end = begin;
    while (end < world_ranks.size() && node_of(world_ranks[end]) == node_of(world_ranks[begin])) ++end;
    ++out.nodes;
    out.per_node = std::min(out.per_node, static_cast<int>(end - begin));
    begin = end;
  }
  return out;
}

Reach Placement::pair(int a, int b) const {
  Reach out{.size = 2, .nodes = 1, .per_node = 2};
  for (int data = 0; data < dp_; ++data) {
    for (int tensor = 0; tensor < tp_; ++tensor) {
      if (node_of(world_rank(a, data, tensor)) != node_of(world_rank(b, data, tensor))) return {2, 2, 1};
    }
  }
  return out;
}

int Placement::senders_per_node(int a, int b) const {
  // Replicas follow each other in world rank, so those of one node are one run.
  int most = 1;
  int senders = 0;
  int last_node = -1;
  for (int replica = 0; replica < dp_ * tp_; ++replica) {
    const int node = node_of(world_rank(a, 0, replica));
    if (node != last_node) senders = 0;
    last_node = node;
    if (node != node_of(world_rank(b, 0, replica))) ++senders;
    most = std::max(most, senders);
  }
  return most;
}

int Placement::used_per_node() const { return std::min(gpus_per_node_, tp_ * dp_ * pp_); }

}  // namespace sluice
