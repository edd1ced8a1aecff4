#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traces/measured/measured_run.h"
#include "traces/measured/step_graph.h"

namespace sluice::traces {

// Something that makes measured steps slower than they would be without it.
struct SlowCause {
  enum class Kind : std::uint8_t {
    stage,             // a rank's passes take longer than those of the other ranks, in all replicas
    worker,            // a worker's passes take longer than those of the same rank in other replicas
    replica,           // the passes of most ranks of a replica take longer than in other replicas
    link,              // transfers between two neighbouring ranks take longer than between others
    pause,             // a pass, or the time before one, took longer once
    sequence_lengths,  // microbatches differ on all ranks alike
    collectives,       // reductions and gathers of a kind take longer than their median
    host,              // all other delays before ops
  };
  Kind kind = Kind::stage;
  std::string what;  // for the user: "replica 1 rank 3: passes take 1.10 times those of other replicas"
  // For stage and replica: the first worker; for a link: the first one before it; for a pause. -1: several.
  int worker = -1;
  std::int64_t step = -1;    // of a pause: the number of its step
  double saved_seconds = 0;  // mean per step: measured minus replayed without the cause
};
std::string_view name_of(SlowCause::Kind kind);

// Everything a counterfactual changes at once.
struct Counterfactuals {
  double measured = 0;                 // mean seconds of a step
  double replayed = 0;                 // with measured durations and delays: equal to `measured` but for clock errors
  double no_delays = 0;                // without delays before ops
  double free_transfers = 0;           // with pipeline transfers of 0 s
  double equal_stages = 0;             // with passes that take the mean of their kind over the ranks
  std::optional<double> lighter_last;  // with one layer less on the last stage; with `layers`
  std::vector<SlowCause> causes;       // largest first, those that save more than 0.1 % of a step
};

// Replays each step without one cause at a time. `graphs` follow the observed rule. The typical time of a pass is the
// median over steps and microbatches of its kind, worker and chunk; that of a rank the lower median over its replicas.
// With one replica, a slow device cannot be told from a long stage: both are of kind `stage`. `layers`: of the model,
// if known; a layer takes the time of a typical stage before the last, divided by layers per stage.
Counterfactuals causes_of_slowness(const MeasuredRun& run, const std::vector<StepGraph>& graphs,
                                   std::optional<int> layers = std::nullopt);

}  // namespace sluice::traces
