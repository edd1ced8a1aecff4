#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/prediction.h"

namespace sluice::sim {

// A change to a scenario that makes it fit.
struct Remedy {
  std::string flags;  // what to add on the command line
  double iteration_s = 0;
  std::int64_t needed_bytes = 0;  // of the rank that needs most
};

// For a scenario that does not fit: changes that make it fit, fastest first, five at most. Each is predicted, not
// estimated: more recomputation, a distributed optimizer, sequence parallelism, half the microbatch, twice the slices,
// a leaner family, and two of the first three together. Empty if none does.
std::vector<Remedy> what_would_fit(const Setup& setup);

// Whether that can be had at once: not for graphs of over two million vertices.
bool fit_advice_is_quick(const Setup& setup);

}  // namespace sluice::sim
