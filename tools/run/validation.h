#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "exec/measure/trial.h"
#include "exec/plan/run_plan.h"
#include "model/cost/cost_table.h"
#include "model/timeline/metrics.h"
#include "model/timeline/timeline.h"
#include "traces/compare/comparison.h"
#include "traces/rows/run_rows.h"

namespace sluice::tools {

// What was predicted of runs of one graph, and what they came to; of each measured value the median over the runs.
// Differences are measured / predicted - 1.

// All vertices of a kind together.
struct KindValidation {
  RowKind kind = RowKind::F;
  int count = 0;
  double predicted_s = 0;  // the sum of their durations
  double measured_s = 0;
  // Mean over those predicted to last more than 1 us of |measured - predicted| / predicted, each the median over the
  // runs; nothing if there are none.
  std::optional<double> op_error;
};

struct RankValidation {
  Both<double> busy_s;  // first: predicted; second: measured
  Both<double> bubble_fraction;
  std::int64_t predicted_peak_bytes = 0;
  std::int64_t held_bytes = 0;   // the most that was held at once in any of the runs
  std::int64_t arena_bytes = 0;  // that are there to be held
};

struct Validation {
  std::string schedule;
  double predicted_s = 0;
  std::vector<double> measured_s;  // makespan of each run, in their order
  Both<double> bubble_fraction;
  std::vector<KindValidation> kinds;  // those that occur
  std::vector<RankValidation> ranks;
  Timeline predicted;
  Timeline nearest;  // the run whose makespan is nearest to the median

  double median_s() const;
  double makespan_difference() const { return median_s() / predicted_s - 1; }
  // Of the rank where it is largest, with its sign.
  double memory_difference() const;
};

// The time that the table says `plan` takes. The table must be of its tensor-parallel size and microbatches.
Timeline predict(const RunPlan& plan, const CostTable& table);

// Precondition: there is at least one run.
Validation validate(const RunPlan& plan, const CostTable& table, const PlanTrials& trials);

}  // namespace sluice::tools
