#pragma once

#include "model/cluster/placement.h"

namespace sluice::model {

// Times of ring collectives of `bytes` (of the whole tensor) over a group that lies as `reach` says, in seconds:
//   fixed + steps * step latency + share of the bytes / bandwidth of the ring.
// Inside a node the ring runs at the link's collective bandwidth. Over several nodes every member on a node is a way
// out of it (one ring each), so the ring has the least of the inside bandwidth and per_node times a GPU's share of the
// network, and the latencies of the network. An all-reduce over nodes takes the steps of a tree where those are fewer,
// along the members of each node and then over the nodes, and back. All are 0 for a group of one.
class Collectives {
 public:
  Collectives(const Cluster& cluster, const Placement& placement) : cluster_(cluster), placement_(placement) {}

  double all_reduce_s(const Reach& reach, double bytes) const { return ring_s(reach, bytes, 2); }
  double all_gather_s(const Reach& reach, double bytes) const { return ring_s(reach, bytes, 1); }
  double reduce_scatter_s(const Reach& reach, double bytes) const { return ring_s(reach, bytes, 1); }

  // Every rank starts with `bytes`, and sends each other one its share: 1/size. Point to point, all at once: inside the
  // node over its ports, and meanwhile to other nodes over the network.
  double all_to_all_s(const Reach& reach, double bytes) const;
  // Every rank sends `bytes` to the next one of the group: the slowest link that this crosses.
  double shift_s(const Reach& reach, double bytes) const;

  // Bandwidth at which data pass through each member of the ring.
  double ring_bytes_per_s(const Reach& reach) const;

 private:
  // What one GPU of those in use sends at to other nodes.
  double network_bytes_per_s() const;
  // `passes` over the ring, each of size - 1 steps that move 1/size of the bytes.
  double ring_s(const Reach& reach, double bytes, int passes) const;

  Cluster cluster_;
  Placement placement_;
};

}  // namespace sluice::model
