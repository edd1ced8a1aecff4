#pragma once

#include <optional>
#include <string>
#include <vector>

#include "traces/measured/measured_run.h"
#include "traces/measured/step_graph.h"

namespace sluice::traces {

// A change to a run, and what its replay saves.
struct StepRemedy {
  std::string text;          // for the user: "move 2 layers from rank 3 to rank 2"
  double saved_seconds = 0;  // mean per step: replayed minus replayed with the change
};

// Layers moved from ranks whose passes take long to others, so that steps are shortest: of the states on the way from
// the measured division to an even one, which moves one layer after the other from the longest rank to the shortest, up
// to 16 are replayed on the median step, and the best on all steps. `layers`: of the model; if not known, eighths of
// the passes of a typical rank are moved. A layer takes the median time of a rank over its layers, by kind of pass.
// Nullopt if no state saves time. `graphs` follow the observed rule.
std::optional<StepRemedy> move_layers(const MeasuredRun& run, const std::vector<StepGraph>& graphs,
                                      std::optional<int> layers);

// Sequences balanced over replicas: in each step, passes of a replica take the mean time over all replicas instead of
// their own (the median over its ranks of their relative time).
StepRemedy balance_replicas(const MeasuredRun& run, const std::vector<StepGraph>& graphs);

}  // namespace sluice::traces
