#pragma once

#include <vector>

#include "sim/planner/order_times.h"
#include "sim/planner/placed_problem.h"

namespace sluice::sim {

// Orders for more microbatches, made of good ones for few: on each rank a stretch of the list that holds `period`
// microbatches of every group is repeated until there are enough. What the rank holds is the same before and after it,
// so limits stay kept. `from` says when, in nanoseconds of the short orders, the stretch is to begin: each rank takes
// one that begins nearest. The result keeps OpTable::ordered, but may deadlock. Empty if a rank has no such stretch, or
// `period` does not divide the microbatches to be added.
// `times` has just run `orders`, which are those of `few`.
Orders stretched(const OpTable& few, const OpTable& many, const Orders& orders, const OrderTimes& times, int period,
                 std::int64_t from);

}  // namespace sluice::sim
