#pragma once

#include <optional>
#include <string>

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

// Choices among the iteration times of a table; nothing if no two have the same model, batch and number of GPUs.
std::optional<Choices> choices_of(const TableScore& score);

std::string choices_text(const Choices& choices);

}  // namespace sluice::bench::accuracy
