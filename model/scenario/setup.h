#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/graph/lowering.h"
#include "model/scenario/costs.h"
#include "model/scenario/scenario.h"
#include "model/schedule/family.h"
#include "model/schedule/schedule.h"
#include "model/workload/training.h"

namespace sluice::model {

// Returns the schedule of a scenario: of a family, or read from a file, which must then agree with the scenario's
// sizes. With documents, its microbatches are those of the first replica. Throws InputError, or ScheduleError for an
// invalid file.
Schedule make_schedule(const Scenario& scenario);

// Parses `text`, the contents of the schedule file that the scenario names: CSV if the name ends in .csv, otherwise
// JSON. Throws as above.
Schedule parse_schedule(const Scenario& scenario, std::string_view text);

// Returns the sizes that a scenario specifies for its family. Throws InputError for a missing one.
FamilyParams family_params(const Scenario& scenario);

// Lowers a schedule with this name or from this file, which errors name.
OpGraph lower_named(const Schedule& schedule, const LoweringOptions& options, const std::string& name);

// Called when memory is exhausted. Throws InputError that suggests fewer ops if the schedule has many of them.
void report_out_of_memory(const Scenario& scenario);

// A scenario that is ready to be lowered, priced and simulated. Owns the objects that its parts refer to; not movable.
class Setup {
 public:
  // Throws InputError naming the scenario's field, ScheduleError for a schedule that deadlocks.
  explicit Setup(const Scenario& scenario);
  // The same with another schedule of the same placement, for example with more batches.
  Setup(const Scenario& scenario, Schedule schedule);
  // The same with a part of the scenario's schedule, whose costs are those of the whole one.
  Setup(const Scenario& scenario, Schedule part, int microbatches);
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  const Scenario& scenario() const { return costs_.scenario(); }
  const Schedule& schedule() const { return schedule_; }
  const std::vector<StageContents>& stages() const { return costs_.stages(); }  // empty without a model
  const CostModel& cost() const { return costs_.cost(); }
  const OpGraph& graph() const { return graph_; }
  // The options that the graph was lowered with.
  LoweringOptions lowering_options() const { return costs_.lowering_options(schedule_.weight_policy()); }

 private:
  Schedule schedule_;
  ScenarioCosts costs_;
  OpGraph graph_;
};

}  // namespace sluice::model
