#pragma once

#include <cstdint>

#include "model/namespaces.h"

namespace sluice::test {

// Returns the number of calls of operator new in this program.
std::int64_t allocations();

}  // namespace sluice::test
