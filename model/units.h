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

// Measures by how much rounding to whole nanoseconds changes times.
class RoundingError {
 public:
  // Adds `count` times of `seconds`, which became `rounded`.
  void add(double seconds, Duration rounded, double count = 1);
  // Throws InputError if the changes are above 1 % of the sum of all times. `what` names them, in the plural.
  void check(std::string_view what) const;
  // Whether `count` times with this sum are so long that their changes are certainly below that.
  static bool negligible(Duration sum, double count) { return 0.5 * count <= kMost * static_cast<double>(sum.count()); }

 private:
  static constexpr double kMost = 0.01;
  double seconds_ = 0;
  double changes_s_ = 0;
  double count_ = 0;
};

}  // namespace sluice::model
