#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/scenario/costs.h"
#include "model/scenario/setup.h"
#include "model/schedule/schedule.h"
#include "sim/engine/predict.h"

namespace sluice::sim {

// A scenario's schedule with a number of slices, lowered once and simulated for different cuts, which differ only in
// times and bytes. Not movable: its parts refer to each other.
class SlicesRun {
 public:
  // Throws InputError for a number of slices that the family does not support.
  SlicesRun(Scenario scenario, std::int64_t granularity, int slices);
  SlicesRun(const SlicesRun&) = delete;
  SlicesRun& operator=(const SlicesRun&) = delete;
  ~SlicesRun();

  const Schedule& schedule() const { return schedule_; }
  const ScenarioCosts& costs() const { return costs_; }
  const OpGraph& graph() const { return graph_; }
  std::int64_t granules() const { return granules_; }
  std::int64_t simulations() const { return simulations_; }

  // The result of one cut. A cut that fits is better than one that does not; of two that fit, the faster one is better;
  // of two that do not, the one that needs less memory.
  struct Result {
    Duration makespan{};
    std::optional<Fit> fit;
    bool fits() const { return !fit || fit->fits; }
  };
  Result simulate(const std::vector<std::int64_t>& granules);
  // Returns nothing if the cut is not better than `than`. Computes memory only if time does not decide.
  std::optional<Result> simulate_if_better(const std::vector<std::int64_t>& granules, const Result& than);

  std::vector<std::int64_t> lengths_of(const std::vector<std::int64_t>& granules) const;

 private:
  class KnownCosts;
  Timeline timeline_of(const std::vector<std::int64_t>& granules);
  std::optional<Fit> fit_of_timeline(const Timeline& timeline) const;

  std::int64_t granularity_;
  std::int64_t tokens_;
  std::int64_t granules_;
  Schedule schedule_;
  ScenarioCosts costs_;
  OpGraph graph_;
  std::unique_ptr<KnownCosts> known_;
  std::int64_t simulations_ = 0;
};

}  // namespace sluice::sim
