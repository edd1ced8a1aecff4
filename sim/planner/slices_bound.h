#pragma once

#include <vector>

#include "model/graph/op_graph.h"
#include "model/scenario/costs.h"
#include "model/slicing/stage_times.h"

namespace sluice::sim {

// Lower bound of the makespan of a schedule over all cuts of its sequences; slices_for_schedule.h derives it.
class SlicesBound {
 public:
  // `graph`: of the schedule with any number of slices; not referenced after construction. `times`: of its costs; must
  // outlive this. Preconditions: the schedule flushes and has one route and no joint blocks.
  SlicesBound(const OpGraph& graph, const ScenarioCosts& costs, const StageTimes& times);

  // Returns the bound over all cuts into `slices` slices.
  Duration operator()(int slices) const;

 private:
  struct Rank {
    std::vector<int> stages;  // ascending: the first F and the last backward of the rank are of the first
    Duration steps{};         // minimal time of collectives and optimizer steps after its list
  };
  void find_steps(const OpGraph& graph, const CostModel& cost);
  void find_sends(const Schedule& schedule, const ScenarioCosts& costs);
  Duration send(const std::vector<std::vector<Duration>>& sends, int stage, std::int64_t granules) const {
    return sends[stage][granules - 1];
  }
  Duration head(const Rank& rank, std::int64_t granules) const;
  Duration return_path(const Rank& rank, std::int64_t granules) const;
  Duration work(const Rank& rank, std::int64_t begin, std::int64_t granules, bool weights) const;

  const StageTimes& times_;
  int microbatches_;
  bool split_;
  bool blocking_;  // transfers count as work of the sender
  std::vector<Rank> ranks_;
  Duration last_steps_{};  // of the rank that has stage 0
  // By stage and granules: time until the next stage has the result of a slice's F, and the previous one its gradient.
  std::vector<std::vector<Duration>> sends_forward_, sends_gradient_;
};

}  // namespace sluice::sim
