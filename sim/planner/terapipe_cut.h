#pragma once

#include <cstdint>
#include <vector>

#include "model/scenario/setup.h"

namespace sluice::sim {

// Returns the slices of TeraPipe's optimum (model/slicing) for equally cut microbatches in the pipeline of `setup`: the
// minimum of D sum(f_i + x_i) + (K - 1)(max f_i + max x_i) for D microbatches and K ranks, with the times of the
// slowest stage, including the slowest transfer where the framework waits for transfers. Exact if D divides K - 1;
// otherwise the better one of the optima for the next lower and higher integer. Throws InputError.
std::vector<std::int64_t> terapipe_cut(const Setup& setup, std::int64_t granularity);

}  // namespace sluice::sim
