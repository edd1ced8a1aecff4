#pragma once

#include <vector>

#include "model/graph/op_graph.h"
#include "model/scenario/costs.h"
#include "model/slicing/stage_times.h"

namespace sluice::sim {

// A bound on the makespan of a schedule over all cuts of its sequences (the argument: slices_for_schedule.h).
class SlicesBound {
 public:
  // `graph` is of the schedule with any number of slices, and no longer needed when this is made; `times` are of its
  // costs and stay. Preconditions: the schedule flushes and has one route and no joint blocks.
  SlicesBound(const OpGraph& graph, const ScenarioCosts& costs, const StageTimes& times);

  // No cut in so many slices has a shorter makespan.
  Duration operator()(int slices) const;

 private:
  // What a rank waits for and does besides its own ops.
  struct Rank {
    std::vector<int> stages;  // ascending: the first F and the last backward of the rank are of the first
    Duration steps{};         // what at least follows its list: collectives and optimizer steps
  };
  void find_steps(const OpGraph& graph, const CostModel& cost);
  void find_sends(const Schedule& schedule, const ScenarioCosts& costs);
  Duration send(const std::vector<std::vector<Duration>>& sends, int stage, std::int64_t granules) const {
    return sends[stage][granules - 1];
  }
  Duration head(const Rank& rank, std::int64_t granules) const;
  Duration way_back(const Rank& rank, std::int64_t granules) const;
  Duration work(const Rank& rank, std::int64_t begin, std::int64_t granules, bool weights) const;

  const StageTimes& times_;
  int microbatches_;
  bool split_;
  bool blocking_;  // what a rank sends is part of its work
  std::vector<Rank> ranks_;
  Duration last_steps_{};  // of the rank that has stage 0
  // By stage and granules: until the next stage has what a slice's F made, and the previous one its gradient.
  std::vector<std::vector<Duration>> sends_forward_, sends_gradient_;
};

}  // namespace sluice::sim
