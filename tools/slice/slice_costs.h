#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "model/scenario/costs.h"
#include "model/slicing/stage_times.h"
#include "model/slicing/terapipe.h"
#include "tools/command/scenario_flags.h"

namespace sluice::tools {

// What `slice` cuts and what that costs: a scenario as one sequence through its pipeline, or a table of times.
class SliceCosts {
 public:
  // A scenario document: its stages as cells of a pipeline, whatever schedule it names. `granularity` 0: that of at
  // most 256 granules, a power of two. Throws InputError.
  SliceCosts(const nlohmann::json& document, const std::string& file, std::int64_t granularity, bool backward);
  // A table of times on `cells` cells.
  SliceCosts(const std::string& times_file, int cells, bool backward);
  ~SliceCosts();

  // The problem for microbatches of so many sequences (0: the scenario's), without limits on the slices. Refers to
  // this. A table holds for one number of sequences: throws InputError for others.
  SlicingProblem problem(int sequences = 0);

  std::int64_t tokens() const { return tokens_; }
  std::int64_t granularity() const { return granularity_; }
  int cells() const { return cells_; }
  int sequences() const { return sequences_; }
  const Scenario* scenario() const { return scenario_ ? &*scenario_ : nullptr; }
  // Latency of all hops from the first cell to the last: on top of a sweep, whatever the cut.
  Duration hops() const;

 private:
  std::optional<Scenario> scenario_;
  std::optional<Schedule> schedule_;
  std::unique_ptr<ScenarioCosts> costs_;
  std::vector<std::unique_ptr<StageTimes>> times_;  // that problems refer to
  std::optional<SlicingProblem> table_;
  bool backward_;
  std::int64_t tokens_ = 0;
  std::int64_t granularity_ = 1;
  int cells_ = 1;
  int sequences_ = 1;
};

// What --slices asks for; 0 if it is not given. A file's slices are what is to be replaced.
int asked_slices(const ScenarioFlags& flags);
// Gives a scenario document another schedule, and takes out of it all that says how the sequence is cut.
void name_schedule(nlohmann::json& document, const std::string& name);

// The default of --granularity: a power of two that leaves at most 256 granules.
std::int64_t default_granularity(std::int64_t tokens);

}  // namespace sluice::tools
