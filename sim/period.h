#pragma once

#include "model/cost/price.h"
#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"

namespace sluice::sim {

// Time per batch when batches follow each other without a barrier: each rank repeats its list, and this is the growth
// of the makespan per repetition once it is constant. It is the eigenvalue of the max-plus map from one repetition's
// lane times to the next, found by iterating that map until every lane grows alike over some number of repetitions.
// Where costs are so nearly tied that this takes too long, the mean growth of the later half of the repetitions, which
// the true value then differs from by less than the spread of the lanes over that window. Where links share something
// the repetitions are run with contention; there growth counts as constant once it was the same twice in a row.
// Precondition: the schedule flushes.
Duration repeated_period(const OpGraph& graph, const Prices& prices);

// The same for a schedule without a flush, from the batches that it spans: the growth of the time at which a batch's
// last gradient is done, before the pipeline begins to drain. `constant` tells whether it no longer changed.
struct BatchGrowth {
  Duration period{};
  bool constant = false;
};
BatchGrowth batch_growth(const OpGraph& graph, const Timeline& timeline);

// Batches that a schedule without a flush must span for `batch_growth` to look past filling and draining.
int batches_for_growth(int num_ranks, int num_microbatches);

}  // namespace sluice::sim
