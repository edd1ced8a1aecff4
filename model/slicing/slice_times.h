#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/units.h"

namespace sluice::model {

// How long slices of one sequence take on one cell of a pipeline: t(i, j) of Li et al. 2021 (TeraPipe), 3.3, for i
// tokens behind j earlier ones. Cuts lie at multiples of the granularity; where that does not divide the sequence, its
// last slice takes what is left.
struct SliceTimes {
  std::int64_t tokens = 0;
  std::int64_t granularity = 1;
  // Writes to out[n] the time of n + 1 granules that begin `context` tokens into the sequence, a multiple of the
  // granularity; the last granule of the sequence may be short. Deterministic; never negative.
  std::function<void(std::int64_t context, std::span<Duration> out)> row;
  // Known to grow, or stay, with the tokens of a slice. Rows are then asked for only as far as they matter; otherwise
  // all of each row is read and looked at.
  bool grows = false;

  std::int64_t granules() const { return (tokens + granularity - 1) / granularity; }
  // Tokens before granule n, and in all for n = granules().
  std::int64_t position(std::int64_t granule) const { return std::min(granule * granularity, tokens); }
  // One slice of so many granules, the first being `begin`.
  Duration time(std::int64_t begin, std::int64_t granules) const;
};

// Times of single slices, asked for by tokens and context.
SliceTimes slice_times(std::int64_t tokens, std::int64_t granularity,
                       std::function<Duration(std::int64_t tokens, std::int64_t context)> time);

// A table: by_context[j][i - 1] is the time of i granules behind j. Row j holds at least granules - j entries.
SliceTimes tabulated_times(std::int64_t tokens, std::int64_t granularity,
                           std::vector<std::vector<Duration>> by_context);

}  // namespace sluice::model
