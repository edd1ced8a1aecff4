#pragma once

#include <cstdint>

#include "model/cluster/cluster.h"
#include "model/workload/training.h"

namespace sluice::model {

// The distribution of a group of communicating GPUs over the nodes.
struct Reach {
  int size = 1;
  int nodes = 1;     // number of nodes with members
  int per_node = 1;  // smallest number of members on a node: the ways out of each node
};

// The devices of world ranks, in Megatron-LM's orders: tensor ranks next to each other, then context, then data and
// pipeline, or pipeline and data (Training::pipeline_before_data); world rank i is on device i. Of the replicas of a
// stage, those with the parts of the same experts are consecutive, then those of an expert-parallel group. If the
// replicas of a group are distributed differently, results are for the worst one.
class Placement {
 public:
  // Throws InputError if the cluster has fewer than tp cp dp pp GPUs.
  Placement(const Training& training, const Cluster& cluster);

  // The replicas of a pipeline rank, tensor ranks first, then context, then data, with increasing world ranks.
  int replicas() const { return dp_ * tp_; }
  int world_rank(int pipeline, int replica) const {
    return (replica / together_ * pp_ + pipeline) * together_ + replica % together_;
  }
  int node_of(int world_rank) const { return world_rank / gpus_per_node_; }

  Reach tensor_group() const { return tensor_; }
  Reach context_group() const { return context_; }
  Reach data_group() const { return data_; }  // that has the same parameters: context and data ranks
  // The part of it over which states are sharded, and the ranks with the same shard (HSDP).
  Reach shard_group() const { return shard_; }
  Reach copy_group() const { return copy_; }
  Reach expert_group() const { return expert_; }
  Reach expert_tensor_group() const { return expert_tensor_; }  // that has the parts of the same experts
  Reach expert_data_group() const { return expert_data_; }      // that has the same experts
  Reach expert_shard_group() const { return expert_shard_; }
  Reach expert_copy_group() const { return expert_copy_; }
  Reach world_group() const { return world_; }
  // The first `count` pipeline ranks of the same replica.
  Reach first_ranks(int count) const;
  // Pipeline ranks `a` and `b` of the same replica.
  Reach pair(int a, int b) const;
  // Number of GPUs of one node that send concurrently when all replicas of pipeline rank `a` send to rank `b` on other
  // nodes.
  int senders_per_node(int a, int b) const;
  // Number of the node's GPUs that are in use.
  int used_per_node() const;

 private:
  std::int64_t period() const;
  // Of a group of `size` ranks from `first` on, `stride` apart.
  Reach spread(int first, int size, int stride) const;
  // Of a group of `size` replicas of a pipeline rank from `replica` on, `stride` apart.
  Reach reach(int pipeline, int replica, int size, int stride) const;
  // The worst of the groups of `size` replicas of a pipeline rank, `stride` apart.
  Reach worst_group(int size, int stride) const;

  int tp_;
  int dp_;  // context and data ranks
  int pp_;
  int together_;  // number of replicas of a pipeline rank with consecutive world ranks
  int gpus_per_node_;
  Reach tensor_;
  Reach context_;
  Reach data_;
  Reach shard_;
  Reach copy_;
  Reach expert_;
  Reach expert_tensor_;
  Reach expert_data_;
  Reach expert_shard_;
  Reach expert_copy_;
  Reach world_;
};

}  // namespace sluice::model
