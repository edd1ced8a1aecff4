#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/schedule/schedule.h"

namespace sluice::test {

// Integer nanoseconds of every op, of a joint block (its two ops' sum if empty), and of a hop between two ranks.
struct OracleCosts {
  std::function<std::int64_t(const Op&)> op;
  std::function<std::int64_t(const Op&, const Op&)> joint;
  std::int64_t hop = 0;
};

// The same for all stages: `f`, `b` (of an I), `w`, and `b + w` for a B.
OracleCosts uniform(std::int64_t f, std::int64_t b, std::int64_t w, std::int64_t hop = 0);

struct OracleTimes {
  bool deadlock = false;
  std::vector<std::vector<std::int64_t>> start;  // by rank and position in its order
  std::vector<std::vector<std::int64_t>> end;

  std::int64_t makespan() const;      // last end; the first start is 0
  std::int64_t span(int rank) const;  // from its first start to its last end
  std::int64_t largest_span() const;
  std::int64_t busy(int rank) const;  // a joint block counts once
};

// When every op starts and ends, straight from the definitions: each as soon as its rank is free and what it needs is
// done. Slow and obvious; shares nothing with the product but Schedule and Op.
OracleTimes longest_path(const Schedule& schedule, const OracleCosts& costs);

// The most that `rank` holds at once, in (microbatch, chunk, slice): an F adds one, its B, or else its `released_by`
// (I or W), takes it away.
int peak_in_flight(const Schedule& schedule, int rank, OpKind released_by = OpKind::W);

}  // namespace sluice::test
