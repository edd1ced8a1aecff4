#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/units.h"

namespace sluice::traces {

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// Formats a time with four significant digits and a suitable unit, "891.4 ms"; whole seconds from 10^4 s.
std::string time_text(Duration duration);

// Returns "1 microbatch" or "2 microbatches", with `plural` as the ending.
std::string counted(std::int64_t number, std::string_view what, std::string_view plural);

// Formats a rounded number with thousands separated by spaces, "36 760".
std::string grouped(double value);

}  // namespace sluice::traces
