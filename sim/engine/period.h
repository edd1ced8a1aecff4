#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "model/cost/price.h"
#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"
#include "sim/engine/sweep.h"

namespace sluice::sim {

// Time per batch when batches follow each other without a barrier: the growth of the makespan per repetition, once it
// is constant, when each rank repeats its list. This is the eigenvalue of the max-plus map from the lane times of one
// repetition to those of the next, found by iterating the map until all lanes grow equally over some number of
// repetitions. Where costs are so nearly equal that this takes too long, returns the mean growth over the second half
// of the repetitions; its error is less than the spread of the lanes over that window, divided by the number of
// repetitions in it. Where links share resources, repetitions are simulated with contention, and growth counts as
// constant once two successive values are equal. Precondition: the schedule flushes.
Duration repeated_period(const OpGraph& graph, const Prices& prices);

// The same for a schedule with `size` vertices whose shortened one has `graph`, without shared links. `repeat` is
// called for each repetition of the whole schedule: it turns the times when lanes are free before it into those after
// it, which steps and collectives have no part in. Returns nothing if it returns false.
std::optional<Duration> repeated_period(const OpGraph& graph, std::int64_t size,
                                        const std::function<bool(LaneTimes&)>& repeat);

// Time per batch of a schedule without a flush, from the batches that it spans. `constant`: over some number of batches
// everything in as many batches as an op depends on is later by the same time, so that it is in all batches that follow
// alike. Otherwise the mean growth per batch over about half of the batches before the drain, in whole cycles of p /
// gcd(p, m) batches, after which transfers between p ranks meet the same microbatches of a batch.
struct BatchGrowth {
  Duration period{};
  bool constant = false;
};
BatchGrowth batch_growth(const OpGraph& graph, const Timeline& timeline);

// Number of batches that a schedule without a flush should span for `batch_growth` to exclude warm-up and drain.
int batches_for_growth(int num_ranks, int num_microbatches);

}  // namespace sluice::sim
