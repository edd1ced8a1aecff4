#include "sim/planner/cyclic_zone.h"

#include <algorithm>

namespace sluice::sim {

Zone::Zone(std::size_t points) : points_(points), least_(points * points, kNone) {
  for (std::size_t a = 0; a < points; ++a) least_[a * points + a] = 0;
}

void Zone::raise(std::size_t a, std::size_t b, std::int64_t least) {
  std::int64_t& bound = least_[a * points_ + b];
  bound = std::max(bound, least);
}

bool Zone::close() {
  for (std::size_t via = 0; via < points_; ++via) {
    for (std::size_t a = 0; a < points_; ++a) {
      const std::int64_t first = at(a, via);
      if (first == kNone) continue;
      for (std::size_t b = 0; b < points_; ++b) {
        if (at(via, b) != kNone) raise(a, b, first + at(via, b));
      }
      if (at(a, a) > 0) return false;
    }
  }
  return true;
}

bool Zone::tighten(std::size_t a, std::size_t b, std::int64_t least) {
  if (at(a, b) >= least) return true;
  if (at(b, a) != kNone && least + at(b, a) > 0) return false;
  for (std::size_t x = 0; x < points_; ++x) {
    if (at(x, a) == kNone) continue;
    const std::int64_t first = at(x, a) + least;
    for (std::size_t y = 0; y < points_; ++y) {
      if (at(b, y) != kNone) raise(x, y, first + at(b, y));
    }
  }
  return true;
}

Zone Zone::projected(std::span<const std::size_t> points) const {
  Zone out(points.size());
  for (std::size_t a = 0; a < points.size(); ++a) {
    for (std::size_t b = 0; b < points.size(); ++b) out.raise(a, b, at(points[a], points[b]));
  }
  return out;
}

bool Zone::includes(const Zone& other) const {
  return std::equal(least_.begin(), least_.end(), other.least_.begin(),
                    [](auto mine, auto its) { return mine <= its; });
}

}  // namespace sluice::sim
