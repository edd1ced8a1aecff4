#pragma once

#include <cstdint>
#include <vector>

#include "model/scenario/setup.h"

namespace sluice::bench::claims {

// Slices of TeraPipe's optimum (model/slicing) for microbatches that follow each other through the pipeline of `setup`,
// all cut alike: least D sum(f_i + x_i) + (K - 1)(max f_i + max x_i) for D microbatches and K ranks, times being those
// of the slowest stage, with the slowest hop where the software waits for what it sends. The optimum is exact for (K -
// 1) / D whole; else it is the better one of those for the next whole numbers below and above. Throws InputError.
std::vector<std::int64_t> optimal_cut(const Setup& setup, std::int64_t granularity);

}  // namespace sluice::bench::claims
