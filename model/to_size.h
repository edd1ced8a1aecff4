#pragma once

#include <cstddef>
#include <cstdint>

#include "model/namespaces.h"

namespace sluice::model {

// Converts an index or a count that is not negative to std::size_t, for arithmetic that would overflow in int.

}  // namespace sluice::model
