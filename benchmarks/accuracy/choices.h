#pragma once

#include <string>
#include <vector>

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// What choosing by predictions loses in sets of runs.
struct Regret {
  int sets = 0;  // of two or more runs of which one did not fail
  // (tokens/s of the best run of a set) / (of the chosen one) - 1, sorted: of the first choice, and of the best of
  // five.
  std::vector<double> first;
  std::vector<double> of_five;
  int skipped = 0;  // chosen runs that had failed; the next were taken
};

// Chooses in every set by prediction alone. Runs predicted not to fit come last.
Regret regret_of(const std::vector<MeasuredRun>& runs);
std::string regret_text(const Regret& regret);

// Returns the configurations of a table to choose from: those with the same model, batch and number of GPUs are a set.
std::vector<MeasuredRun> runs_of(const TableScore& score);

// Returns the error of the predicted difference of configurations of one set that are predicted within 15 % of each
// other: the median over all pairs. Empty without pairs.
std::string difference_text(const std::vector<MeasuredRun>& runs);

}  // namespace sluice::bench::accuracy
