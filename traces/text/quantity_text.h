#pragma once

#include <string>

#include "model/units.h"

namespace sluice::traces {

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// "891.4 ms": four significant digits, the unit that suits; from 10^4 s on whole seconds.
std::string time_text(Duration duration);

// "36 760": rounded to whole, thousands apart.
std::string grouped(double value);

}  // namespace sluice::traces
