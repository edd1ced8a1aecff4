#include "model/units.h"

#include <fmt/format.h>

#include <cmath>

#include "model/errors.h"

namespace sluice::model {

Duration from_seconds(double seconds, std::string_view what) {
  constexpr double kMaxSeconds = 1e8;
  if (!(seconds >= 0.0 && seconds <= kMaxSeconds)) {
    throw InputError(fmt::format("{}: expected seconds between 0 and 1e8, got {}", what, seconds));
  }
  // The multiplication needs more than double's 53 bits above 9e6 s; long double has 64.
  return Duration{std::llround(static_cast<long double>(seconds) * 1e9L)};
}

}  // namespace sluice::model
