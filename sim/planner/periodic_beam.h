#pragma once

#include <cstddef>

#include "sim/planner/cyclic_schedule.h"

namespace sluice::sim {

// Builds a schedule with a short period quickly, by a beam search without proof: it places the forwards and gradients
// of a period in the order of their dependencies, each as soon as its rank is free at that time of every period or just
// after or before another op, and keeps the `width` partial schedules with the least delays. When the last of a rank
// is placed, the weight gradients fill its gaps, and its limit is checked. Tries about 12 periods from the simple bound
// on. Returns a schedule with period 0 if none of them succeeds.
CyclicSchedule short_period(const CyclicProblem& problem, std::size_t width, SearchSteps steps);

}  // namespace sluice::sim
