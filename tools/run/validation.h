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
#include "model/workload/layer_part.h"
#include "traces/compare/comparison.h"
#include "traces/rows/run_rows.h"

namespace sluice::tools {

// Predicted and measured values of runs of a graph. Measured values are medians over the runs; differences are
// measured / predicted - 1.

// All vertices of one kind.
struct KindValidation {
  RowKind kind = RowKind::F;
  int count = 0;
  double predicted_s = 0;  // the sum of their durations
  double measured_s = 0;
  // Mean of |measured - predicted| / predicted over the vertices predicted to take more than 1 us, with measured the
  // median over the runs; empty if there are none.
  std::optional<double> op_error;
};

// One part of layers with experts, over all ops and ranks.
struct PartValidation {
  LayerPart part = LayerPart::dispatch;
  Both<double> seconds;  // first: predicted; second: measured
};

// Dispatch and combine of one rank.
struct ExchangeValidation {
  Both<double> seconds;  // in total; measured with waits for other ranks, which are predicted as compute
  Both<double> hidden;   // fraction of it during which the rank computes another part
};

struct RankValidation {
  Both<double> busy_s;  // first: predicted; second: measured
  Both<double> bubble_fraction;
  std::int64_t predicted_peak_bytes = 0;
  std::int64_t held_bytes = 0;                 // peak over all runs
  std::int64_t arena_bytes = 0;                // capacity
  std::optional<ExchangeValidation> exchange;  // with expert parallelism
};

struct Validation {
  std::string schedule;
  double predicted_s = 0;
  std::vector<double> measured_s;  // makespan per run
  int disturbed_runs = 0;          // left out, because a rank waited for a core; in measured_s unless `calm`
  double longest_wait_s = 0;       // of a rank for a core, in a run
  std::int64_t switches = 0;       // involuntary, of all ranks in all runs
  bool calm = true;                // enough runs, and the costs, are undisturbed
  Both<double> bubble_fraction;
  std::vector<KindValidation> kinds;  // kinds that occur
  // Dispatch and combine, with experts.
  std::vector<PartValidation> parts;
  std::vector<RankValidation> ranks;
  Timeline predicted;
  Timeline nearest;  // the run whose makespan is nearest to the median

  double median_s() const;
  double makespan_difference() const { return median_s() / predicted_s - 1; }
  // Returns the signed difference of the rank where it is largest.
  double memory_difference() const;
};

// Simulates `plan` with the costs of `table`, which must be for its tensor-parallel size and microbatches.
Timeline predicted_timeline(const RunPlan& plan, const CostTable& table);

// Compares the prediction with the runs, of which there must be at least one. If fewer than `fewest` count, it compares
// with all, and is not calm.
Validation validate(const RunPlan& plan, const CostTable& table, const PlanTrials& trials, int fewest);

}  // namespace sluice::tools
