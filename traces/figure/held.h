#pragma once

#include <span>
#include <vector>

#include "traces/figure/drawn_run.h"

namespace sluice::traces {

// From `time` on, until the next.
struct HeldLevel {
  Duration time{};
  double amount = 0;
};

// What ranks hold over time, in GiB or, where the run has no bytes, in microbatches in flight (as Metrics counts them:
// an F's share from its start to the end of its B or W).
struct Held {
  bool bytes = false;
  std::vector<int> ranks;
  std::vector<std::vector<HeldLevel>> levels;  // beside `ranks`; strictly rising times
  std::size_t most_at = 0;                     // in `ranks`: who holds most, of all ranks of the run
  double most = 0;
};

// Of `ranks`, and of the rank that holds most if it is not among them.
Held held_over_time(const DrawnRun& run, std::span<const int> ranks);

struct HeldScale {
  double left = 0;  // px of time 0
  double px_per_ns = 0;
  double bottom = 0;  // px of amount 0
  double px_per_unit = 0;
};
// The levels as data of an SVG path of horizontal and vertical lines, up to `end`. Where many levels share a column of
// half a px, it goes to the least, the most and the last of them.
std::string held_path(std::span<const HeldLevel> levels, Duration end, const HeldScale& scale);

}  // namespace sluice::traces
