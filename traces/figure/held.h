#pragma once

#include <span>
#include <vector>

#include "traces/figure/figure.h"

namespace sluice::traces {

// An amount from `time` until the next level.
struct HeldLevel {
  Duration time{};
  double amount = 0;
};

// Memory of ranks over time in GiB or, if the run has no bytes, their microbatches in flight (as in Metrics: each F
// counts its fraction of a microbatch from its start to the end of its B or W).
struct Held {
  bool bytes = false;
  std::vector<int> ranks;
  std::vector<std::vector<HeldLevel>> levels;  // parallel to `ranks`; strictly increasing times
  std::size_t most_at = 0;                     // index in `ranks` of the rank with the highest peak of the run
  double most = 0;                             // its peak
};

// Returns the levels of `ranks`, and of the rank with the highest peak if it is not among them.
Held held_over_time(const DrawnRun& run, std::span<const int> ranks);

struct HeldScale {
  double left = 0;  // px of time 0
  double px_per_ns = 0;
  double bottom = 0;  // px of amount 0
  double px_per_unit = 0;
};
// Returns the levels as data of an SVG path of horizontal and vertical lines, up to `end`. Levels within the same half
// px are reduced to their minimum, maximum and last value.
std::string held_path(std::span<const HeldLevel> levels, Duration end, const HeldScale& scale);

}  // namespace sluice::traces
