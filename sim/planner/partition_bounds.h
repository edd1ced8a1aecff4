#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "model/cluster/cluster.h"
#include "model/scenario/scenario.h"
#include "model/schedule/schedule.h"
#include "sim/planner/iteration_bound.h"

namespace sluice::sim {

// How a partition of the layers compares with others: by memory, then by time. Smaller is better.
struct PartitionKey {
  enum class Memory : std::uint8_t { fits, tight, over, refused };  // tight: only within the memory margin of the GPU
  Memory memory = Memory::refused;
  std::int64_t value = 0;  // makespan in nanoseconds, or if over, bytes

  bool operator<(const PartitionKey& other) const {
    return std::pair(memory, value) < std::pair(other.memory, other.value);
  }
  bool operator==(const PartitionKey&) const = default;
};

// Lower bounds of the time and memory of partitions of a model over the stages of a schedule. They follow from the
// times and bytes of each possible content of a stage, which are computed once.
class PartitionBounds {
 public:
  // What a stage adds to its rank, at least: not more than with more layers, or with more of them dense.
  struct Work {
    StageWork times;
    std::int64_t standing = 0;  // bytes for the whole run
    std::int64_t scratch = 0;   // bytes that the stages of a rank share
  };

  // `schedule` has the placement of the stages, and may have fewer than `microbatches` microbatches. Without `timed`,
  // all times are bounded by 0. Precondition: one shape.
  PartitionBounds(const Scenario& scenario, Schedule schedule, int microbatches, bool timed);

  int num_layers() const { return layers_; }
  int num_stages() const { return schedule_.num_stages(); }
  const Schedule& schedule() const { return schedule_; }
  // The work of a stage with `layers` layers after `before` others.
  const Work& work(int stage, int before, int layers) const;
  int most_layers_of(int stage) const { return most_layers(role_of(stage)); }
  // Time of all microbatches of a stage on one rank, and of its last steps.
  std::int64_t busy(const StageWork& times) const;

  // Returns a lower bound of a partition.
  PartitionKey least(std::span<const int> layers) const;
  PartitionKey::Memory memory_class(std::int64_t needed_bytes) const;

  // Returns a lower bound of the time of all partitions that are not worse than `best`.
  std::int64_t least_of_all(const PartitionKey& best) const;

  // Returns all partitions whose lower bounds are below `best`, or nothing if there are more than `most`, or more than
  // `nodes` partial ones to look at.
  std::optional<std::vector<std::vector<int>>> below(const PartitionKey& best, std::int64_t nodes,
                                                     std::size_t most) const;

 private:
  friend class PartitionTree;
  friend class PartitionRelaxation;

  void fill(const Scenario& scenario, bool timed);
  void make_monotone();
  void add_transfers(const Scenario& scenario);
  Work& at(int role, int layers, int dense);
  const Work& at(int role, int layers, int dense) const;
  int role_of(int stage) const { return stage == 0 ? 0 : stage + 1 == num_stages() ? 2 : stage == mtp_stage_ ? 3 : 1; }
  bool has_role(int role) const;
  // Largest number of layers of a stage in this role: none in the last one after multi-token prediction.
  int most_layers(int role) const {
    return role == 2 && mtp_stage_ >= 0 && mtp_stage_ + 1 < num_stages() ? 0 : layers_;
  }
  int dense_in(int before, int layers) const;
  std::vector<StageContents> contents_with(const Model& model, int layers, int dense) const;
  // Time of the forwards and input gradients of all microbatches of a stage.
  std::int64_t gradients(const StageWork& times) const;
  PartitionKey key_of_bytes(std::int64_t standing) const;

  Schedule schedule_;
  Gpu gpu_;
  int layers_ = 0;
  int dense_ = 0;       // number of leading dense layers of a model with experts, otherwise 0
  int mtp_stage_ = -1;  // of multi-token prediction, if the model has it
  int of_route_ = 0;
  bool joint_ = false;
  std::vector<std::vector<int>> holders_;  // the ranks of each stage
  int copies_ = 1;                         // least number of them
  std::vector<Work> table_;                // by role of the stage (first, middle, last, with multi-token prediction),
                                           // number of layers, and of dense ones
};

}  // namespace sluice::sim
