#include "model/cost/sharing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

#include "model/cluster/placement.h"
#include "model/cost/collectives.h"
#include "model/to_size.h"

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

// Returns the columns with several links, of `flows` in the order of links; of equal neighbors only one. `ends`: the
// number of flows by resource.
std::vector<Column> columns_of_several(std::span<const std::pair<std::size_t, int>> flows,
                                       std::vector<std::size_t> ends) {
  std::exclusive_scan(ends.begin(), ends.end(), ends.begin(), std::size_t{0});
  std::vector<int> links(flows.size());  // by resource
  for (const auto& [resource, link] : flows) links[ends[resource]++] = link;
  std::vector<Column> out;
  Column column;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    column.clear();
    for (; begin < end; ++begin) {
      if (column.empty() || column.back().first != links[begin]) column.emplace_back(links[begin], 0);
      ++column.back().second;
    }
    if (column.size() > 1 && (out.empty() || out.back() != column)) out.push_back(column);
  }
  return out;
}

}  // namespace

LinkSharing link_sharing(std::span<const LinkEnds> links, const Cluster& cluster, const Placement& placement) {
  LinkSharing out;
  if (cluster.intra_node.sharing == Sharing::none && cluster.inter_node.sharing == Sharing::none) return out;
  out.links.resize(links.size());
  std::vector<std::pair<std::size_t, int>> loads;  // of links, each at a port or card: kind, direction and location
  std::vector<std::size_t> ends;                   // by port or card: the number of flows, of all up to it below
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
      const std::size_t place = to_size(of_node ? placement.node_of(world_rank) : world_rank);
      const std::size_t resource = 4 * place + (inside ? 2 : 0) + (incoming ? 1 : 0);
      if (resource >= ends.size()) ends.resize(resource + 1, 0);
      ++ends[resource];
      loads.emplace_back(resource, i);
    };
    for (int replica = 0; replica < placement.replicas(); ++replica) {
      const int sender = placement.world_rank(from, replica);
      const int receiver = placement.world_rank(to, replica);
      if (!collective && !inside && placement.node_of(sender) == placement.node_of(receiver)) continue;
      load(sender, false);
      load(receiver, true);
    }
  }
  std::vector<Column> kept = columns_of_several(loads, std::move(ends));
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
