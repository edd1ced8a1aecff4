#pragma once

#include <nlohmann/json_fwd.hpp>

#include "tools/analyze/analysis.h"

namespace sluice::tools {

// A scenario with the measured times as its costs, which every command reads: shape and schedule of the run, for each
// stage the mean of its forwards and backwards over all workers and steps, the median transfer, and the mean time from
// the last pass to the end of the step. Backwards that were not split are divided evenly into I and W. Slices of the
// run count as microbatches.
nlohmann::ordered_json measured_scenario(const Analysis& analysis);

}  // namespace sluice::tools
