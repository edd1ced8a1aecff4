#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/schedule/schedule.h"

namespace sluice::model {

// A ring of ops each of which waits for the next, as "F(..) -> B(..) -> F(..)". `next[r]` is the first op of rank r's
// list that cannot run. It is the shortest ring where at most some thousands of ops are left, and one through the
// heads of the lists, which is where a cluster would hang, in larger ones. Precondition: there is one.
std::string deadlock_ring(const Schedule& schedule, const std::vector<std::size_t>& next);

}  // namespace sluice::model
