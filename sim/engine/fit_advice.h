#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/engine/predict.h"

namespace sluice::sim {

// A change to a scenario that makes it fit.
struct Remedy {
  std::string flags;  // to append to the command line
  double iteration_s = 0;
  std::int64_t needed_bytes = 0;  // of the rank with the highest memory use
};

// For a scenario that does not fit, returns at most five changes that make it fit, fastest first; empty if none does.
// Tries more recomputation, a distributed optimizer, sequence parallelism, half the microbatch, twice the slices, a
// family with less memory, and pairs of the first three, and predicts each, but no change with more than two million
// vertices to simulate.
std::vector<Remedy> what_would_fit(const Setup& setup);

// Whether `what_would_fit` is fast: false for graphs with more than two million vertices.
bool fit_advice_is_quick(const Setup& setup);

}  // namespace sluice::sim
