#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "traces/measured/measured_run.h"
#include "traces/measured/step_graph.h"

namespace sluice::traces {

// The kind as which an op counts: receives count as the sends of their direction.
constexpr MeasuredKind slowdown_kind(MeasuredKind kind) {
  if (kind == MeasuredKind::forward_receive) return MeasuredKind::forward_send;
  return kind == MeasuredKind::backward_receive ? MeasuredKind::backward_send : kind;
}
// Its name: "forward-pp-comm", "backward-pp-comm", or that of the kind.
std::string_view slowdown_kind_name(MeasuredKind kind);

// The slowdown of steps against ideal ones, as defined by the what-if study of stragglers (Lin et al., "Understanding
// Stragglers in Large Model Training Using What-if Analysis", OSDI 2025). In an ideal step, passes, garbage collection
// and the optimizer take the mean of their kind over all workers and steps, communication the median of its transfers.
// Times are in seconds.
struct Slowdown {
  std::vector<double> measured;    // by step: first start to last end
  std::vector<double> no_delay;    // replayed with measured durations and without delays between ops
  std::vector<double> ideal;       // replayed with ideal durations
  double slowdown = 0;             // S: mean of no_delay over mean of ideal
  std::vector<double> by_replica;  // S if only this replica keeps its measured durations and all else is ideal
  std::vector<double> by_rank;
  // By slowdown_kind, so that sends and receives count together; 0 for kinds that do not occur.
  std::array<double, kNumMeasuredKinds> by_kind{};
  // The share of `no_delay - ideal` that vanishes if the ops of the last rank are ideal: M_S. Nullopt if the steps are
  // as fast as ideal ones.
  std::optional<double> last_rank_share;
  // Likewise for the slowest 3 % of the workers, rounded up, ranked by the smaller of the slowdowns of their replica
  // and rank: M_W.
  std::optional<double> worst_workers_share;
  std::vector<int> worst_workers;
  // The span of the passes, from their first start to their last end, replayed over measured: mean over steps of the
  // difference, and of its absolute value, as fractions.
  double span_error = 0;
  double span_absolute_error = 0;
};

// The graphs of all steps. Throws InputError as step_graph does.
std::vector<StepGraph> step_graphs(const MeasuredRun& run, ReceiveRule rule);

Slowdown slowdown_of(const MeasuredRun& run, const std::vector<StepGraph>& graphs);

}  // namespace sluice::traces
