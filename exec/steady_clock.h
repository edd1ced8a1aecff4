#pragma once

#include <chrono>
#include <cstdint>

#include "model/namespaces.h"

namespace sluice::exec {

// Returns the time of the machine's steady clock in nanoseconds; processes on one host share it.
inline std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// Converts nanoseconds to seconds.
constexpr double in_seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

}  // namespace sluice::exec
