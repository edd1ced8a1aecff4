#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/units.h"

namespace sluice::model {

// The times of slices of a sequence on one cell of a pipeline: t(i, j) of Li et al. 2021 (TeraPipe), 3.3, for i tokens
// after a prefix of j tokens. Cuts are at multiples of the granularity; where it does not divide the sequence, the last
// slice has the remainder.
struct SliceTimes {
  std::int64_t tokens = 0;
  std::int64_t granularity = 1;
  // Writes to out[n] the time of n + 1 granules that start `context` tokens into the sequence, a multiple of the
  // granularity; the last granule of the sequence may be shorter. Deterministic; never negative.
  std::function<void(std::int64_t context, std::span<Duration> out)> row;
  // The time of a slice never decreases with its tokens. Rows are then only read as far as needed; otherwise each row
  // is read completely.
  bool grows = false;

  std::int64_t granules() const { return (tokens + granularity - 1) / granularity; }
  // Tokens before granule n, or of the whole sequence for n = granules().
  std::int64_t position(std::int64_t granule) const { return std::min(granule * granularity, tokens); }
  // The time of one slice of `granules` granules, the first being `begin`.
  Duration time(std::int64_t begin, std::int64_t granules) const;
};

// Times of single slices, queried by tokens and context.
SliceTimes slice_times(std::int64_t tokens, std::int64_t granularity,
                       std::function<Duration(std::int64_t tokens, std::int64_t context)> time);

// A table: by_context[j][i - 1] is the time of i granules after a prefix of j. Row j has at least granules - j entries.
SliceTimes tabulated_times(std::int64_t tokens, std::int64_t granularity,
                           std::vector<std::vector<Duration>> by_context);

}  // namespace sluice::model
