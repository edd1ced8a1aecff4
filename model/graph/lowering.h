// Public header.
#pragma once

#include "model/graph/op_graph.h"

namespace sluice::model {

// What surrounds the schedule's own ops in an iteration.
struct LoweringOptions {
  const Footprint* footprint = nullptr;  // bytes; zeros without
  int data_parallel = 1;                 // above 1: a gradient reduction for each stage and step
  bool overlap_grad_reduce = false;      // it starts when its stage's gradients are done, not its rank's list
  bool gather_parameters = false;        // distributed optimizer: an all-gather after the step
  bool tied_embedding = false;           // first and last stage sum the embedding's gradient
  bool global_norm = false;              // every step waits for the norm over all ranks (flush only)
  bool recompute = false;                // a recompute vertex before every B and I
  bool blocking_transfers = false;       // a rank's next op waits until what its last one sent has arrived
};

// Lowers a schedule to its OpGraph. Data edges: F(s,m,i) needs F(s-1,m,i), through a transfer when it lives elsewhere,
// and F(s,m,i-1); B or I(s,m,i) needs F(s,m,i), B or I(s+1,m,i) and B or I(s,m,i+1); W(s,m,i) needs I(s,m,i); a step
// needs its stage's weight gradients; with weight versions a forward needs the step that wrote its version.
// `schedule` must outlive the graph. Throws ScheduleError with the shortest ring of ops if the schedule deadlocks,
// InputError for options that its weight policy cannot have, and for more bytes than 64 bits count.
OpGraph lower(const Schedule& schedule, const LoweringOptions& options = {});

}  // namespace sluice::model
