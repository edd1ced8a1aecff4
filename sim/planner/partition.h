#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "model/scenario/scenario.h"
#include "sim/planner/structure_runs.h"

namespace sluice::sim {

// Effort of a search for a partition. The result depends on it, but not on the speed of the machine.
struct PartitionLimits {
  std::int64_t vertices = 12'000'000;  // of all simulated graphs
  std::int64_t simulations = 64;       // that are made also of larger graphs
  std::int64_t nodes = 200'000;        // of the tree of partial partitions in the proof
};

// The best number of layers of each stage that was found.
struct Partition {
  std::vector<int> layers;     // by stage
  int mtp_layers = 0;          // of multi-token prediction
  int mtp_stage = kLastStage;  // that has them
  PlanResult result;           // refused if no partition can be simulated
  std::vector<int> given;      // the scenario's own partition; empty if it has none
  int given_mtp_stage = kLastStage;
  PlanResult given_result;     // refused if it cannot be simulated
  Duration bound{};            // of the iteration time of every partition that fits like this one
  bool proven = false;         // no partition is better
  std::int64_t simulated = 0;  // number of partitions
};

// Searches the numbers of layers per stage with the shortest simulated iteration. As in a ranking, partitions that fit
// are better than those that fit only within the memory margin of the GPU, and these are better than those that do not
// fit, of which the one with the least memory is best. The first stage has the embedding and the last the head; any
// stage may have no layers. Multi-token prediction is on the last stage or, before an only head, on the one before it.
// Once `*stop` is set, returns the best so far. Throws InputError if the scenario lacks a model or a cluster, or cannot
// be simulated with any partition.
Partition best_partition(const Scenario& scenario, const PartitionLimits& limits = {},
                         const std::atomic<bool>* stop = nullptr);

// The same, but among partitions whose iterations are up to kEqualTimes longer than the best one's, the first with the
// fewest changes of the number of layers between neighboring stages: of those with equal inner stages, or two
// numbers of layers in them, and any outer stages, and of the scenario's own. Not proven then.
inline constexpr double kEqualTimes = 0.001;
Partition regular_partition(const Scenario& scenario, const PartitionLimits& limits = {},
                            const std::atomic<bool>* stop = nullptr);

}  // namespace sluice::sim
