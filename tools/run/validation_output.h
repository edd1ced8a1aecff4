#pragma once

#include <span>
#include <string>

#include "model/cost/profile_fit.h"
#include "tools/run/validation.h"

namespace sluice::tools {

// What is outside is marked, and makes the command's exit code.
struct Tolerances {
  double makespan = 0.1;
  double memory = 0.05;

  bool holds(const Validation& validation) const;
};

// What the predictions were made of, for the heading and the JSON document.
struct ValidationHeading {
  std::string machine;
  std::string model;
  std::string precision;
  std::string transport;
  std::string costs;  // "measured" or the name of a file
};

// A line for each schedule, then for each its kinds of ops and its ranks.
void print_validations(std::span<const Validation> validations, const ValidationHeading& heading,
                       const Tolerances& tolerances);

// One JSON document (schema sluice.validation/1, docs/formats.md).
std::string validations_json(std::span<const Validation> validations, const ValidationHeading& heading,
                             const Tolerances& tolerances);

}  // namespace sluice::tools
