#pragma once

#include <optional>
#include <string>

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// How well predictions choose between measured configurations of one model, batch and number of GPUs.
struct Choices {
  int pairs = 0;                 // predicted within 15 % of each other
  double median_difference = 0;  // by how much their predicted difference is off, relatively
  int sets = 0;                  // of three or more configurations
  double mean_loss = 0;          // by which the one predicted to be fastest is slower than the fastest measured
  double worst_loss = 0;
};

// Of a table's iteration times; nothing where no two are of one model, batch and number of GPUs.
std::optional<Choices> choices_of(const TableScore& score);

std::string choices_text(const Choices& choices);

}  // namespace sluice::bench::accuracy
