#pragma once

#include <optional>
#include <string>
#include <vector>

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// Quality of choices by predictions between measured configurations of one model, batch and number of GPUs.
struct Choices {
  int pairs = 0;                 // of configurations predicted within 15 % of each other
  double median_difference = 0;  // relative error of their predicted difference
  int sets = 0;                  // of three or more configurations
  double mean_loss = 0;          // fraction by which the predicted best is slower than the measured best
  double worst_loss = 0;
};

// What choosing by predictions loses in sets of runs.
struct Regret {
  int sets = 0;  // with at least one run that did not fail
  // (tokens/s of the best run of a set) / (of the chosen one) - 1, sorted: of the first choice, and of the best of
  // five.
  std::vector<double> first;
  std::vector<double> of_five;
  int skipped = 0;  // chosen runs that had failed; the next were taken
};

// Chooses in every set by prediction alone. Runs predicted not to fit come last.
Regret regret_of(const std::vector<MeasuredRun>& runs);
std::string regret_text(const Regret& regret);

// Choices among the iteration times of a table; nothing if no two have the same model, batch and number of GPUs.
std::optional<Choices> choices_of(const TableScore& score);

std::string choices_text(const Choices& choices);

}  // namespace sluice::bench::accuracy
