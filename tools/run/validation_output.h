#pragma once

#include <span>
#include <string>

#include "model/cost/profile_fit.h"
#include "tools/run/validation.h"

namespace sluice::tools {

enum class Verdict { within, outside, none };

// Maximum relative errors. Schedules outside are marked and set the exit code.
struct Tolerances {
  double makespan = 0.1;
  double memory = 0.05;

  // Returns `none` for a validation that is not calm.
  Verdict verdict(const Validation& validation) const;
};

// The setting of a validation, for the heading and the JSON document.
struct ValidationHeading {
  std::string machine;
  std::string model;
  std::string precision;
  std::string transport;
  std::string costs;  // "measured" or the name of a file
};

// Prints one line per schedule, then its kinds of ops and its ranks.
void print_validations(std::span<const Validation> validations, const ValidationHeading& heading,
                       const Tolerances& tolerances);

// Returns one JSON document (schema sluice.validation/1, docs/formats.md).
std::string validations_json(std::span<const Validation> validations, const ValidationHeading& heading,
                             const Tolerances& tolerances);

}  // namespace sluice::tools
