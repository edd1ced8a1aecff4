#pragma once

#include <cstdint>

#include "model/namespaces.h"

namespace sluice::test {

// How often operator new has been called in this program.
std::int64_t allocations();

}  // namespace sluice::test
