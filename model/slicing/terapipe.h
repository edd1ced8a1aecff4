#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/slicing/slice_times.h"
#include "model/units.h"

namespace sluice::model {

// TeraPipe's problem (Li et al. 2021, eq. 4 and 5): cut one sequence so that its slices get through `num_cells` equal
// cells in the least time. Forward only that time is sum t_i + (K - 1) max t_i. With a backward sweep behind it, which
// takes x_i, it is sum (f_i + x_i) + (K - 1) (max f_i + max x_i); max f and max x may be those of different slices.
// A hop's latency belongs to neither: it is passed K - 1 times a sweep, whatever the cut.
struct SlicingProblem {
  SliceTimes forward;
  std::optional<SliceTimes> backward;  // of the same tokens and granularity
  int num_cells = 1;                   // K
  std::int64_t min_slices = 1;
  std::int64_t max_slices = 0;  // 0: as many as there are granules
};

struct SlicePlan {
  std::vector<std::int64_t> lengths;  // in tokens
  Duration latency{};
  Duration lower_bound{};   // no cut at this granularity takes less; the latency itself where the plan is optimal
  std::int64_t sweeps = 0;  // dynamic programs over the whole sequence that it took
};

// Throws InputError naming what is wrong: an empty sequence, a granularity below 1 or above the tokens, more slices
// than granules, cells or slices below 1, a backward of another sequence.
void check_problem(const SlicingProblem& problem);

// What a cut takes. The lengths are multiples of the granularity, but for the last one, and add up to the sequence.
Duration pipeline_latency(const SlicingProblem& problem, std::span<const std::int64_t> lengths);

// `slices` lengths as equal as the granularity allows, the longer ones first; a remainder makes the last one shorter.
std::vector<std::int64_t> even_slices(std::int64_t tokens, std::int64_t granularity, std::int64_t slices);

// The optimum, exactly (to the nanosecond of the times given). Any times: where they do not grow with the tokens of a
// slice, all lengths are looked at. Throws InputError as check_problem does, for times whose sum passes 100 days, and
// for more than 2^29 slices that could be in an optimum (a coarser granularity has fewer).
SlicePlan best_slices(const SlicingProblem& problem);

}  // namespace sluice::model
