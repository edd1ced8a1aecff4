#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/slicing/slice_times.h"
#include "model/units.h"

namespace sluice::model {

// TeraPipe's problem (Li et al. 2021, eq. 4 and 5): cut a sequence so that its slices pass `num_cells` equal cells in
// the least time. Forward only, that time is sum t_i + (K - 1) max t_i. With a following backward sweep, which takes
// x_i, it is sum (f_i + x_i) + (K - 1) (max f_i + max x_i); max f and max x may be those of different slices. The
// latency of transfers belongs to neither: it occurs K - 1 times per sweep, whatever the cut.
struct SlicingProblem {
  SliceTimes forward;
  std::optional<SliceTimes> backward;  // for the same tokens and granularity
  int num_cells = 1;                   // K
  std::int64_t min_slices = 1;
  std::int64_t max_slices = 0;  // 0: the number of granules
};

struct SlicePlan {
  std::vector<std::int64_t> lengths;  // in tokens
  Duration latency{};
  Duration lower_bound{};   // of every cut at this granularity; equal to the latency if the plan is optimal
  std::int64_t sweeps = 0;  // number of dynamic programs over the whole sequence
};

// Throws InputError naming the problem: an empty sequence, a granularity below 1 or above the tokens, more slices than
// granules, cells or slices below 1, or a backward of another sequence.
void check_problem(const SlicingProblem& problem);

// Returns the time of a cut into slices with these times; `backward` is empty without a backward.
Duration pipeline_latency(std::span<const Duration> forward, std::span<const Duration> backward, int num_cells);

// Returns the time of a cut. The lengths are multiples of the granularity, except for the last one, and add up to the
// sequence.
Duration pipeline_latency(const SlicingProblem& problem, std::span<const std::int64_t> lengths);

// Returns `slices` lengths as equal as the granularity allows, the longer ones first; a remainder makes the last one
// shorter.
std::vector<std::int64_t> even_slices(std::int64_t tokens, std::int64_t granularity, std::int64_t slices);

// Returns the optimum, exact to the nanosecond of the given times. Any times are allowed: where they decrease with the
// tokens of a slice, all lengths are examined. Throws InputError like check_problem, for times whose sum exceeds 100
// days, and for more than 2^29 slices that could be in an optimum (a coarser granularity has fewer).
SlicePlan best_slices(const SlicingProblem& problem);

}  // namespace sluice::model
