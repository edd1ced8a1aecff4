// Public header.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// Time in Sluice. Integer, so that sums, ties and closed forms are exact.
using Duration = std::chrono::nanoseconds;

// Rounds `seconds` once, to the nearest nanosecond (halves away from zero). `what` names the quantity in
// the error. Throws InputError if `seconds` is negative, not finite, or past 10^8 s (three years).
Duration from_seconds(double seconds, std::string_view what);

inline double to_seconds(Duration d) { return static_cast<double>(d.count()) / 1e9; }

}  // namespace sluice::model
