#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/schedule/schedule.h"

namespace sluice::test {

// Times in nanoseconds: of every op, of a joint block (by default the sum of its two ops), and the latency of a
// transfer between two ranks.
struct OracleCosts {
  std::function<std::int64_t(const Op&)> op;
  std::function<std::int64_t(const Op&, const Op&)> joint;
  std::int64_t hop = 0;
};

// The same times on all stages: `f` for an F, `b` for an I, `w` for a W, `b + w` for a B, `f` for an S and a T.
OracleCosts uniform(std::int64_t f, std::int64_t b, std::int64_t w, std::int64_t hop = 0);

struct OracleTimes {
  bool deadlock = false;                         // then without times
  std::vector<std::vector<std::int64_t>> start;  // by rank and position in its order
  std::vector<std::vector<std::int64_t>> end;

  std::int64_t makespan() const;      // the last end; the first start is 0
  std::int64_t span(int rank) const;  // from the rank's first start to its last end
  std::int64_t largest_span() const;
  std::int64_t busy(int rank) const;  // the sum of its ops' times; a joint block counts once
};

// Returns the start and end of every op, where each starts as soon as its rank is free and its inputs have arrived.
// Slow and simple; shares no code with the library but Schedule and Op.
OracleTimes longest_path(const Schedule& schedule, const OracleCosts& costs);

// Returns the largest number of forwards of `rank` that are in flight at a time, in units of (microbatch, chunk,
// slice): an F adds one; its B, or its `released_by` (I or W) where the backward is split, removes it.
int peak_in_flight(const Schedule& schedule, int rank, OpKind released_by = OpKind::W);

}  // namespace sluice::test
