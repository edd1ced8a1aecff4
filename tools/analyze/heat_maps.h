#pragma once

#include <string>

#include "tools/analyze/analysis.h"

namespace sluice::tools {

// An SVG picture of two heat maps: the median time of the passes of each worker over the mean of all, by rank and
// replica; and the time of the passes of each worker in each step over its median step.
std::string heat_maps(const Analysis& analysis);

}  // namespace sluice::tools
