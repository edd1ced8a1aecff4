#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/scenario/scenario.h"
#include "model/units.h"
#include "sim/prediction.h"

namespace sluice::sim {

// Which cuts of a sequence are looked at for a schedule.
struct SlicesRequest {
  Scenario scenario;  // its schedule is a family that takes slices; how many it has now does not matter
  std::int64_t granularity = 1;
  int slices = 0;  // 0: choose, from 1 up to max_slices
  int max_slices = 16;
  double time_budget_s = 10;  // of searching; the starts of every number of slices are simulated in any case
};

// The best cut found in so many slices.
struct SlicesCandidate {
  int slices = 1;
  std::vector<std::int64_t> lengths;  // in tokens; empty where `refused`
  Duration makespan{};
  Duration even{};         // makespan of even slices, which may not fit
  Duration lower_bound{};  // of every cut in so many slices at this granularity
  std::optional<Fit> fit;  // with a model and a cluster
  bool searched = false;   // no move of a granule helps; otherwise out of time, or not worth it by the bound
  std::int64_t simulations = 0;
  std::string refused;  // why the family does not take so many slices
};

struct ScheduleSlices {
  std::vector<SlicesCandidate> candidates;  // by number of slices
  std::optional<std::size_t> best;          // of those that fit the fastest, of equals the one with fewest slices
  Duration lower_bound{};                   // of all numbers of slices that were looked at
  bool out_of_time = false;
  std::int64_t simulations = 0;
};

// The cut that minimises the simulated makespan of a schedule under the scenario's costs and the device's memory. For
// each number of slices - powers of two and their neighbours, then the neighbours of the best - it starts from even
// slices, slices of equal FLOPs, TeraPipe's optimum and slices whose longest takes least, and moves granules from one
// slice to another, many at first and finally one, until no move of one granule helps. A local search: optimal only
// where the makespan meets the bound. The same every time, unless it runs out of time.
//
// The bound. Before rank r's first op a first slice has passed all earlier stages, computed and sent; after its last
// backward a first slice's gradient passes them again, and then come collectives and the optimizer; in between it
// computes all of its own, and where transfers block also waits for what it sends. So the makespan is at least the
// least, over cuts, of m sum c_r(slice) and head and tail of the first slice, which is a shortest path over the
// sequence; and that for each rank. Where W is apart it need not be done before the gradient passes on: then there are
// two bounds, all of the work without the way back, and the work without W with it.
//
// Throws InputError naming the field for: a schedule that is no family with slices, no sequence length, stragglers or
// noise, uniform costs with a time for each slice, granularity and slices that the sequence does not have.
ScheduleSlices slices_for_schedule(const SlicesRequest& request);

}  // namespace sluice::sim
