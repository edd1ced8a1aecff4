#include "model/cluster/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/to_size.h"

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

// The place of a replica on its node, and that among the replicas with consecutive ranks, repeat after this number of
// replicas; if all have consecutive ranks, the former decides alone.
std::int64_t Placement::period() const {
  return (together_ == replicas() ? std::int64_t{1} : together_) * gpus_per_node_;
}

Reach Placement::worst_group(int size, int stride) const {
  if (size == 1) return {};
  Reach out{.size = 0};
  std::vector<char> seen(to_size(period()), 0);  // by the places of a group's first member
  std::vector<char> aligned(to_size(gpus_per_node_), 0);
  for (int pipeline = 0; pipeline < pp_; ++pipeline) {
    // The groups of a pipeline rank are those of the first one, shifted.
    char& aligned_so = aligned[to_size(pipeline * std::int64_t{together_} % gpus_per_node_)];
    if (std::exchange(aligned_so, 1) != 0) continue;
    for (std::int64_t begin = 0; begin < replicas(); begin += std::int64_t{size} * stride) {
      if (begin > 0 && begin % period() == 0) break;
      for (std::int64_t replica = begin; replica < begin + std::min<std::int64_t>(stride, period()); ++replica) {
        const int first = world_rank(pipeline, static_cast<int>(replica));
        const std::int64_t among = together_ == replicas() ? 0 : replica % together_;
        if (std::exchange(seen[to_size(among * gpus_per_node_ + first % gpus_per_node_)], 1) != 0) continue;
        const bool consecutive = among + (size - std::int64_t{1}) * stride < together_;
        const Reach group =
            consecutive ? spread(first, size, stride) : reach(pipeline, static_cast<int>(replica), size, stride);
        out = out.size == 0 ? group : worse(out, group);
      }
    }
  }
  return out;
}

// Every node between the first and the last member has members if they are less than a node apart; their number
// repeats after as many nodes as a node has GPUs.
Reach Placement::spread(int first, int size, int stride) const {
  if (stride >= gpus_per_node_) return {.size = size, .nodes = size, .per_node = 1};
  const int last = first + (size - 1) * stride;
  Reach out{.size = size, .nodes = node_of(last) - node_of(first) + 1, .per_node = size};
  const auto members_before = [&](int rank) { return std::clamp((rank - first + stride - 1) / stride, 0, size); };
  const auto count = [&](int node) {
    const int end = (node + 1) * gpus_per_node_;
    out.per_node = std::min(out.per_node, members_before(end) - members_before(end - gpus_per_node_));
  };
  for (int node = 0; node < std::min(out.nodes, gpus_per_node_ + 1); ++node) count(node_of(first) + node);
  count(node_of(last));
  return out;
}

// World ranks of replicas increase, so those of one node are consecutive.
Reach Placement::reach(int pipeline, int replica, int size, int stride) const {
  // Members whose places repeat: of many of them, two more show what each adds.
  const auto repeating = static_cast<int>(period() / std::gcd(period(), std::int64_t{stride}));
  if (const int repetitions = size / repeating; repetitions > 3) {
    const int fewer = size - (repetitions - 2) * repeating;
    const Reach some = reach(pipeline, replica, fewer, stride);
    const int added = some.nodes - reach(pipeline, replica, fewer - repeating, stride).nodes;
    return {.size = size, .nodes = some.nodes + (repetitions - 2) * added, .per_node = some.per_node};
  }
  Reach out{.size = size, .nodes = 0, .per_node = size};
  int members = 0;
  for (int i = 0; i < size; ++i) {
    ++members;
    const int node = node_of(world_rank(pipeline, replica + i * stride));
    if (i + 1 < size && node_of(world_rank(pipeline, replica + (i + 1) * stride)) == node) continue;
    ++out.nodes;
    out.per_node = std::min(out.per_node, std::exchange(members, 0));
  }
  return out;
}

Reach Placement::first_ranks(int count) const {
  Reach out{.size = count, .nodes = 0, .per_node = count};
  int members = 0;
  for (int rank = 0; rank < count; ++rank) {
    ++members;
    if (rank + 1 < count && node_of(world_rank(rank + 1, 0)) == node_of(world_rank(rank, 0))) continue;
    ++out.nodes;
    out.per_node = std::min(out.per_node, std::exchange(members, 0));
  }
  return out;
}

Reach Placement::pair(int a, int b) const {
  for (int replica = 0; replica < std::min<std::int64_t>(replicas(), period()); ++replica) {
    if (node_of(world_rank(a, replica)) != node_of(world_rank(b, replica)))
      return {.size = 2, .nodes = 2, .per_node = 1};
  }
  return {.size = 2, .nodes = 1, .per_node = 2};
}

int Placement::senders_per_node(int a, int b) const {
  // World ranks of replicas increase, so those of one node are consecutive. The first node may have fewer, so that two
  // periods have all nodes.
  int most = 1;
  int senders = 0;
  int last_node = -1;
  for (int replica = 0; replica < std::min<std::int64_t>(replicas(), 2 * period()); ++replica) {
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
