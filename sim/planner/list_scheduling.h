#pragma once

#include <cstdint>
#include <vector>

#include "sim/planner/placed_problem.h"

namespace sluice::sim {

// How a rank chooses among what it could run next.
struct ListRules {
  // What ops are worth beside the longest way that follows them: in units of the mean time of an op.
  double gradient_bias = 0;  // of I and B
  double depth_bias = 0;     // for each stage further on
  double noise = 0;          // a random share, drawn once an op
  double hold_back = 0;      // waits for something worth more that comes within so much of the op it would run
  double overfill = 0;       // runs a W in a gap that is too short for it by up to this share of it
  double in_flight = 0;      // forwards without their gradient that a stage may have, if above 0
  enum class Fuse : std::uint8_t {
    never,
    first_stage,  // for whose gradient nobody waits
    before_last,  // all but the last microbatches, as many as there are ranks: while the pipeline drains Ws fill gaps
    always,
  };
  Fuse fuse = Fuse::never;
  unsigned seed = 0;  // of the noise
};

// One set of orders by list scheduling: ops are placed in the order of their starts, so that a rank knows all that has
// come by then; where it would wait, or where memory is short, it runs weight gradients. Limits hold at every moment,
// and an op that takes memory runs only if thereafter the microbatches in flight, oldest first, can still be finished
// one after the other. `tails` by op, as of auto_bounds. Empty if it got stuck all the same, which takes a limit so
// tight that gradients held until W do not fit beside what is left of a microbatch.
Orders list_schedule(const PlacedProblem& problem, const OpTable& table, const std::vector<std::int64_t>& tails,
                     const ListRules& rules);

}  // namespace sluice::sim
