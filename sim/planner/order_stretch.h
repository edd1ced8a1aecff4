#pragma once

#include <vector>

#include "sim/planner/order_times.h"
#include "sim/planner/placed_problem.h"

namespace sluice::sim {

// Builds orders for more microbatches from good ones for few: each rank repeats a part of its list that contains
// `period` microbatches of every group. The memory of the rank is the same before and after that part, so limits are
// kept. The part is the one that starts nearest to `from`, in nanoseconds of the short orders. The result respects
// OpTable::ordered but may deadlock. Returns nothing if a rank has no such part, or if `period` does not divide the
// number of microbatches to add. Precondition: the last run of `times` was `orders`, which belong to `few`.
Orders stretched(const OpTable& few, const OpTable& many, const Orders& orders, const OrderTimes& times, int period,
                 std::int64_t from);

}  // namespace sluice::sim
