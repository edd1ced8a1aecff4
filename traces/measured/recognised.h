#pragma once

#include <string>
#include <vector>

#include "traces/measured/measured_run.h"

namespace sluice::traces {

// The schedule that a measured run followed.
struct Recognised {
  std::string family;  // empty: none of the families
  // "replica 1 rank 3 runs another order in step 12", ...: workers and steps whose order differs from that of the
  // family, or, without one, from the most frequent order of their rank.
  std::vector<std::string> deviations;
  std::int64_t num_deviations = 0;  // of all
};

// Compares the order of the passes of each rank with those of all families of its shape. Of families with equal orders,
// the first in `sluice schedules` is named.
Recognised recognise(const MeasuredRun& run);

}  // namespace sluice::traces
