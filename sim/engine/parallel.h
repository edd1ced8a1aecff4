#pragma once

#include <cstdint>
#include <functional>

#include "model/namespaces.h"

namespace sluice::sim {

// Calls `body(i)` for every i from 0 to count - 1 on all cores, in any order. Rethrows an exception of a call; other
// calls may then not have run.
void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body);
// On how many threads.
int num_threads();

}  // namespace sluice::sim
