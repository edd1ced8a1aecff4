#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/cluster/cluster.h"
#include "model/workload/training.h"

namespace sluice::model {

// How a group of GPUs that communicate lies on the nodes.
struct Reach {
  int size = 1;
  int nodes = 1;     // that it touches
  int per_node = 1;  // the fewest members on a node that it touches: how many ways out each node gives it
};

// Where world ranks are: Megatron-LM's orders, tensor ranks next to each other, then context, then data and pipeline,
// or pipeline and data (Training::pipeline_before_data); world rank i on device i. Of the ranks that hold a stage, its
// replicas, those of an expert-parallel group follow each other. Where replicas of a group lie differently, the answer
// is for the worst.
class Placement {
 public:
  // Throws InputError if tp cp dp pp GPUs are more than the cluster has.
  Placement(const Training& training, const Cluster& cluster);

  // The replicas of a pipeline rank, tensor ranks first, then context, then data: their world ranks increase.
  int replicas() const { return dp_ * tp_; }
  int world_rank(int pipeline, int replica) const {
    return (replica / together_ * pp_ + pipeline) * together_ + replica % together_;
  }
  int node_of(int world_rank) const { return world_rank / gpus_per_node_; }

  Reach tensor_group() const { return tensor_; }
  Reach context_group() const { return context_; }
  Reach data_group() const { return data_; }  // that has the same parameters: context and data ranks
  Reach expert_group() const { return expert_; }
  Reach expert_data_group() const { return expert_data_; }  // that has the same experts
  Reach world_group() const { return world_; }
  // Pipeline ranks `a` and `b` of the same replica.
  Reach pair(int a, int b) const;
  // How many GPUs of one node send at once, when all replicas of pipeline rank `a` send to rank `b` on other nodes.
  int senders_per_node(int a, int b) const;
  // How many of the node's GPUs are in use.
  int used_per_node() const;

 private:
  Reach reach(std::span<const int> world_ranks) const;
  // The worst of the groups of `size` replicas of a pipeline rank, `stride` apart.
  Reach worst_group(int size, int stride) const;

  int tp_;
  int dp_;  // context and data ranks
  int pp_;
  int together_;  // replicas of a pipeline rank with world ranks next to each other
  int gpus_per_node_;
  Reach tensor_;
  Reach context_;
  Reach data_;
  Reach expert_;
  Reach expert_data_;
  Reach world_;
};

}  // namespace sluice::model
