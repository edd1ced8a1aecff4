#pragma once

#include <string>

#include "model/units.h"

namespace sluice::traces {

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// Formats a time with four significant digits and a suitable unit, "891.4 ms"; whole seconds from 10^4 s.
std::string time_text(Duration duration);

// Formats a rounded number with thousands separated by spaces, "36 760".
std::string grouped(double value);

}  // namespace sluice::traces
