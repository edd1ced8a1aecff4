#include "model/cost/sharing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "model/cluster/placement.h"
#include "model/cost/collectives.h"

namespace sluice::model {
namespace {

// A resource represented by its column: the links that use it, each with its number of flows.
using Column = std::vector<std::pair<int, int>>;

// Part of a transfer's bandwidth, of a port or card, that the ring of a data-parallel collective takes at full speed.
double ring_speed(const Cluster& cluster, const Placement& placement, const Reach& group) {
  const Link& link = group.nodes == 1 ? cluster.intra_node : cluster.inter_node;
  double ring = Collectives(cluster, placement).ring_bytes_per_s(group);
  if (group.nodes > 1) ring /= group.per_node;  // of each way out of the node
  return std::min(1.0, ring / (link.bandwidth_bytes_per_s * link.transfer_efficiency));
}

}  // namespace

LinkSharing link_sharing(std::span<const LinkEnds> links, const Cluster& cluster, const Placement& placement) {
  LinkSharing out;
  if (cluster.intra_node.sharing == Sharing::none && cluster.inter_node.sharing == Sharing::none) return out;
  out.links.resize(links.size());
  std::map<std::int64_t, Column> columns;  // ports and cards, by kind, direction and location
  for (int i = 0; i < std::ssize(links); ++i) {
    const auto [from, to] = links[i];
    const bool collective = from == to;
    const Reach group = collective ? placement.data_group() : placement.pair(from, to);
    if (collective && group.size <= 1) continue;
    const bool inside = group.nodes == 1;
    const bool of_node = !inside && !cluster.nic_per_gpu;
    SharedLink& link = out.links[i];
    link.policy = (inside ? cluster.intra_node : cluster.inter_node).sharing;
    if (link.policy == Sharing::none || (collective && link.policy == Sharing::queue)) continue;
    if (collective) {
      link.speed = ring_speed(cluster, placement, group);
    } else if (of_node)
      link.speed = 1.0 / placement.senders_per_node(from, to);
    const auto load = [&](int world_rank, bool incoming) {
      const std::int64_t place = of_node ? placement.node_of(world_rank) : world_rank;
      Column& column = columns[4 * place + (inside ? 2 : 0) + (incoming ? 1 : 0)];
      if (column.empty() || column.back().first != i) column.emplace_back(i, 0);
      ++column.back().second;
    };
    for (int replica = 0; replica < placement.replicas(); ++replica) {
      const int sender = placement.world_rank(from, replica);
      const int receiver = placement.world_rank(to, replica);
      if (!collective && !inside && placement.node_of(sender) == placement.node_of(receiver)) continue;
      load(sender, false);
      load(receiver, true);
    }
  }
  std::vector<Column> kept;
  for (auto& [place, column] : columns) {
    if (column.size() > 1) kept.push_back(std::move(column));
  }
  std::sort(kept.begin(), kept.end());
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  for (const Column& column : kept) {
    const auto link = [&](int i) -> SharedLink& { return out.links[i]; };
    const auto share = [&](int i, int flows) { return std::min(1.0, flows * link(i).speed); };
    double sum = 0;
    for (const auto& [i, flows] : column) sum += share(i, flows);
    constexpr double kNoise = 1e-9;
    if (link(column.front().first).policy == Sharing::fair && sum <= 1 + kNoise) continue;
    for (const auto& [i, flows] : column) link(i).uses.push_back({out.num_resources, share(i, flows)});
    ++out.num_resources;
  }
  return out;
}

}  // namespace sluice::model
