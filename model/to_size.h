#pragma once

#include <cstddef>
#include <cstdint>

#include "model/namespaces.h"

namespace sluice::model {

// Converts an index or a count that is not negative to std::size_t, for arithmetic that would overflow in int.
constexpr std::size_t to_size(std::int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace sluice::model
