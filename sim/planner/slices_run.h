#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/scenario/costs.h"
#include "model/scenario/setup.h"
#include "model/schedule/schedule.h"
#include "sim/prediction.h"

namespace sluice::sim {

// A scenario's schedule with a number of slices, lowered once; simulated for one cut after the other, which differ only
// in what ops take and hold. Not movable: its parts refer to each other.
class SlicesRun {
 public:
  // Throws InputError for a number of slices that the family does not take.
  SlicesRun(Scenario scenario, std::int64_t granularity, int slices);
  SlicesRun(const SlicesRun&) = delete;
  SlicesRun& operator=(const SlicesRun&) = delete;
  ~SlicesRun();

  const Schedule& schedule() const { return schedule_; }
  const ScenarioCosts& costs() const { return costs_; }
  const OpGraph& graph() const { return graph_; }
  std::int64_t granules() const { return granules_; }
  std::int64_t simulations() const { return simulations_; }

  // What one cut comes to. Cuts that fit are better than others; of these the one that needs less, of those the faster.
  struct Result {
    Duration makespan{};
    std::optional<Fit> fit;
    bool fits() const { return !fit || fit->fits; }
  };
  Result simulate(const std::vector<std::int64_t>& granules);
  // Nothing if it is no better. Memory is looked at only where that matters.
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
