#pragma once

#include <cstdint>

namespace sluice::test {

// How often operator new has been called in this program.
std::int64_t allocations();

}  // namespace sluice::test
