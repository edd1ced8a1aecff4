#include "model/cluster/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "model/errors.h"

namespace sluice::model {
namespace {

// The group with slower communication: over more nodes, or with fewer ways out of each.
Reach worse(const Reach& a, const Reach& b) {
  if (a.nodes != b.nodes) return a.nodes > b.nodes ? a : b;
  return a.per_node <= b.per_node ? a : b;
}

}  // namespace

Placement::Placement(const Training& training, const Cluster& cluster)
    : tp_(training.tp),
      dp_(training.data_ranks()),
      pp_(training.pp),
      together_(training.pipeline_before_data ? training.tp * training.cp : replicas()),
      gpus_per_node_(cluster.gpus_per_node) {
  if (training.world_size() > cluster.num_gpus()) {
    const std::string context = training.cp > 1 ? fmt::format("cp {} x ", training.cp) : "";
    throw InputError(fmt::format("tp {} x {}dp {} x pp {} needs {} GPUs, but {} has {} ({} nodes of {})", tp_, context,
                                 training.dp, pp_, training.world_size(),
                                 cluster.name.empty() ? "the cluster" : cluster.name, cluster.num_gpus(), cluster.nodes,
                                 cluster.gpus_per_node));
  }
  tensor_ = worst_group(tp_, 1);
  context_ = worst_group(training.cp, tp_);
  data_ = worst_group(dp_, tp_);
  shard_ = worst_group(training.shard_ranks(), tp_);
  copy_ = worst_group(training.replica_copies(), tp_ * training.shard_ranks());
  expert_tensor_ = worst_group(training.etp, 1);
  expert_ = worst_group(training.ep, training.etp);
  expert_data_ = worst_group(training.expert_data_ranks(), training.expert_ranks());
  expert_shard_ = worst_group(training.expert_shard_ranks(), training.expert_ranks());
  expert_copy_ = worst_group(training.replica_copies(), training.expert_ranks() * training.expert_shard_ranks());
  const int world = static_cast<int>(training.world_size());
  const int rest = world % gpus_per_node_;  // on a partially filled last node
  world_ = {.size = world,
            .nodes = (world + gpus_per_node_ - 1) / gpus_per_node_,
            .per_node = rest > 0 ? rest : gpus_per_node_};
}

Reach Placement::worst_group(int size, int stride) const {
  if (size == 1) return {};
  Reach out;
  std::vector<int> ranks;
  std::vector<char> seen(static_cast<std::size_t>(gpus_per_node_), 0);
  for (int pipeline = 0; pipeline < pp_; ++pipeline) {
    // The groups of a pipeline rank are those of the first one, shifted.
    char& aligned_so = seen[pipeline * std::int64_t{together_} % gpus_per_node_];
    if (std::exchange(aligned_so, 1) != 0) continue;
    for (int replica = 0; replica < replicas(); ++replica) {
      if (replica / stride % size != 0) continue;  // a later member of a group
      ranks.clear();
      for (int i = 0; i < size; ++i) ranks.push_back(world_rank(pipeline, replica + i * stride));
      out = pipeline + replica == 0 ? reach(ranks) : worse(out, reach(ranks));
    }
  }
  return out;
}

// Ranks increase, so those of one node are consecutive.
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
  for (int replica = 0; replica < replicas(); ++replica) {
    if (node_of(world_rank(a, replica)) != node_of(world_rank(b, replica)))
      return {.size = 2, .nodes = 2, .per_node = 1};
  }
  return {.size = 2, .nodes = 1, .per_node = 2};
}

int Placement::senders_per_node(int a, int b) const {
  // World ranks of replicas increase, so those of one node are consecutive.
  int most = 1;
  int senders = 0;
  int last_node = -1;
  for (int replica = 0; replica < replicas(); ++replica) {
    const int node = node_of(world_rank(a, replica));
    if (node != last_node) senders = 0;
    last_node = node;
    if (node != node_of(world_rank(b, replica))) ++senders;
    most = std::max(most, senders);
  }
  return most;
}

int Placement::used_per_node() const { return std::min(gpus_per_node_, tp_ * dp_ * pp_); }

}  // namespace sluice::model
