#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/schedule/schedule.h"

namespace sluice::model {

// Returns a cycle of ops in which each waits for the next, as "F(..) -> B(..) -> F(..)", or "" if there is none.
// `next[r]` is the position of the first op of rank r that cannot run. The cycle is the shortest one if at most 4,000
// ops are left, and otherwise the shortest one through the first op that is part of any.
std::string deadlock_cycle(const Schedule& schedule, const std::vector<std::size_t>& next);

}  // namespace sluice::model
