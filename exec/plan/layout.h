#pragma once

#include "model/namespaces.h"

namespace sluice::exec {

// Numbers of parallel ranks of a run. World ranks count tensor ranks innermost, then data, then pipeline, as in
// Megatron-LM. With experts, each `expert` consecutive ranks of a stage form an expert group, over which the experts
// are distributed.
struct RunLayout {
  int pipeline = 1;
  int data = 1;
  int tensor = 1;
  int expert = 1;

  int size() const { return pipeline * data * tensor; }
  int world_rank(int pipeline_rank, int data_rank, int tensor_rank) const {
    return (pipeline_rank * data + data_rank) * tensor + tensor_rank;
  }
  int tensor_rank(int world_rank) const { return world_rank % tensor; }
  int data_rank(int world_rank) const { return world_rank / tensor % data; }
  int pipeline_rank(int world_rank) const { return world_rank / tensor / data; }
  // Among the data and tensor ranks of a pipeline rank.
  int group_rank(int world_rank) const { return world_rank % (data * tensor); }
};

}  // namespace sluice::exec
