#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/cost/cost_model.h"
#include "model/graph/lowering.h"
#include "model/scenario/scenario.h"
#include "model/schedule/schedule.h"
#include "model/workload/training.h"

namespace sluice {

// The schedule that a scenario asks for: of a family, or read from a file, which the scenario's sizes must then agree
// with. Throws InputError, or ScheduleError for an invalid file.
Schedule make_schedule(const Scenario& scenario);

// Lowers a schedule that has this name or is from this file; errors name the file.
OpGraph lower_named(const Schedule& schedule, const LoweringOptions& options, const std::string& name);

// A scenario made ready to lower, price and simulate. Holds what its parts refer to; not movable.
class Setup {
 public:
  // Throws InputError naming the scenario's field, ScheduleError for a schedule that deadlocks.
  explicit Setup(const Scenario& scenario);
  // The same with another schedule of the same placement (more batches, say).
  Setup(const Scenario& scenario, Schedule schedule);
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  const Scenario& scenario() const { return scenario_; }
  const Schedule& schedule() const { return schedule_; }
  const std::vector<StageContents>& stages() const { return stages_; }  // empty without a model
  const CostModel& cost() const { return *cost_; }
  const OpGraph& graph() const { return *graph_; }
  LoweringOptions lowering_options() const;  // that the graph was lowered with

 private:
  void split_model();
  void make_cost();

  Scenario scenario_;  // with training.pp and shape as the schedule has them
  Schedule schedule_;
  std::vector<StageContents> stages_;
  std::unique_ptr<Footprint> footprint_;
  std::unique_ptr<CostModel> cost_;
  std::optional<OpGraph> graph_;
};

}  // namespace sluice
