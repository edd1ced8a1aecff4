#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/scenario/scenario.h"
#include "model/units.h"
#include "sim/engine/predict.h"

namespace sluice::sim {

// The cuts of a sequence to search for a schedule.
struct SlicesRequest {
  Scenario scenario;  // its schedule is a family with slices; its number of slices is ignored
  std::int64_t granularity = 1;
  int slices = 0;  // 0: search from 1 to max_slices
  int max_slices = 16;
  double time_budget_s = 10;                // of the search; the initial cuts are simulated in any case
  const std::atomic<bool>* stop = nullptr;  // ends the search with the best cut so far
};

// The best cut found with a number of slices.
struct SlicesCandidate {
  int slices = 1;
  std::vector<std::int64_t> lengths;  // in tokens; empty if `refused`
  Duration makespan{};
  Duration even{};         // makespan of even slices, which may not fit
  Duration lower_bound{};  // over all cuts into this number of slices at this granularity
  std::optional<Fit> fit;  // with a model and a cluster
  bool searched = false;   // no move of a granule helps; otherwise out of time, or excluded by the bound
  std::int64_t simulations = 0;
  std::string refused;  // why the family does not support this number of slices
};

struct ScheduleSlices {
  std::vector<SlicesCandidate> candidates;  // by number of slices
  std::optional<std::size_t> best;          // the fastest that fits, ties broken by fewer slices
  Duration lower_bound{};                   // over all numbers of slices that were tried
  bool out_of_time = false;
  bool interrupted = false;
  std::int64_t simulations = 0;
};

// Minimizes the simulated makespan of a schedule over the cuts of its sequences, under the scenario's costs and the
// device's memory. For each number of slices (powers of two and their neighbors, then the neighbors of the best),
// starts from even slices, slices of equal FLOPs, TeraPipe's optimum and the cut with the shortest longest slice, and
// moves granules between slices, many at first, until no move of one granule helps. This local search is proven optimal
// only if the makespan equals the lower bound. Deterministic unless it runs out of time.
//
// The bound, for m microbatches. Before the first op of rank r, a first slice passes all earlier stages. After its last
// backward, the gradient of a first slice passes them again, followed by collectives and the optimizer. In between the
// rank computes all its ops, and also waits for its transfers where these block. The makespan is therefore at least the
// minimum, over all cuts, of m sum c_r(slice) plus head and tail of the first slice: a shortest path over the sequence,
// for each rank. A separate W may run after the gradient has passed on. Then there are two bounds: all work without the
// return path, and the work without W with the return path.
//
// Throws InputError naming the field for a schedule that is not a family with slices, no sequence length, slow ranks or
// links or jitter, uniform costs with one time per slice, and a granularity or number of slices out of range.
ScheduleSlices slices_for_schedule(const SlicesRequest& request);

}  // namespace sluice::sim
