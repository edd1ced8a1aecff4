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

void RoundingError::add(double seconds, Duration rounded, double count) {
  seconds_ += count * seconds;
  changes_s_ += count * std::abs(to_seconds(rounded) - seconds);
  if (seconds > 0) count_ += count;  // times of 0 are exact
}

void RoundingError::check(std::string_view what) const {
  if (changes_s_ <= kMost * seconds_) return;
  throw InputError(
      fmt::format("{} take {:.3g} s on average, which rounding to whole nanoseconds changes by {:.4g} %, more than "
                  "{:.0f} %: use a larger unit of time or fewer slices",
                  what, seconds_ / count_, 100 * changes_s_ / seconds_, 100 * kMost));
}

}  // namespace sluice::model
