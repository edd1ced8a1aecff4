#pragma once

#include "model/cluster/placement.h"

namespace sluice::model {

// Times of ring collectives of `bytes` (the size of the whole tensor) over a group placed as `reach` describes, in
// seconds:
//   fixed + steps * step latency + bytes per step / bandwidth of the ring.
// Within a node the ring has the link's collective bandwidth. Over several nodes every member on a node is a way out of
// it (one ring each), so the ring has the minimum of the bandwidth within the node and per_node times a GPU's part of
// the network's, and the latencies of the network. An all-reduce over nodes takes the steps of a tree if those are
// fewer, along the members of each node and then over the nodes, and back. All are 0 for a group of one.
class Collectives {
 public:
  Collectives(const Cluster& cluster, const Placement& placement) : cluster_(cluster), placement_(placement) {}

  double all_reduce_s(const Reach& reach, double bytes) const { return ring_s(reach, bytes, 2); }
  double all_gather_s(const Reach& reach, double bytes) const { return ring_s(reach, bytes, 1); }
  double reduce_scatter_s(const Reach& reach, double bytes) const { return ring_s(reach, bytes, 1); }
  // A reduce-scatter and an all-gather, of which NCCL has no trees. On one node, as an all-reduce.
  double scatter_gather_s(const Reach& reach, double bytes) const {
    return reach.nodes == 1 ? all_reduce_s(reach, bytes) : reduce_scatter_s(reach, bytes) + all_gather_s(reach, bytes);
  }

  // Every rank starts with `bytes` and sends 1/size of them to each other rank. Point to point and concurrent: within
  // the node over its ports, and at the same time to other nodes over the network.
  double all_to_all_s(const Reach& reach, double bytes) const;
  // The same where every rank sends `near` bytes to others of its node and `far` bytes to other nodes.
  double exchange_s(const Reach& reach, double near, double far) const;
  // Every rank sends `bytes` to the next one of the group, over the slowest link between any two of them.
  double shift_s(const Reach& reach, double bytes) const;

  // Bandwidth at which data pass through each member of the ring.
  double ring_bytes_per_s(const Reach& reach) const;

  // Bandwidth of one active GPU to other nodes.
  double network_bytes_per_s() const;

 private:
  // `passes` over the ring, each of size - 1 steps that move 1/size of the bytes.
  double ring_s(const Reach& reach, double bytes, int passes) const;

  Cluster cluster_;
  Placement placement_;
};

}  // namespace sluice::model
