#pragma once

#include <cstdint>
#include <vector>

#include "sim/planner/placed_problem.h"

namespace sluice::sim {

// How a rank selects its next op.
struct ListRules {
  // Terms of an op's priority in addition to the longest path after it, in units of the mean time of an op.
  double gradient_bias = 0;  // of I and B
  double depth_bias = 0;     // per stage
  double noise = 0;          // random term, drawn once per op
  double hold_back = 0;      // waits for an op of higher priority that arrives within this fraction of the op to run
  double overfill = 0;       // runs a W in a gap that is too short by up to this fraction of the W
  double in_flight = 0;      // limit of forwards without their gradient per stage, if above 0
  enum class Fuse : std::uint8_t {
    never,
    first_stage,  // no rank waits for its gradient
    before_last,  // all but as many last microbatches as there are ranks: while the pipeline drains, Ws fill gaps
    always,
  };
  Fuse fuse = Fuse::never;
  unsigned seed = 0;  // of the noise
};

// Builds orders by list scheduling. Ops are placed in the order of their starts, so that all earlier arrivals are
// known; a rank runs weight gradients where it would wait or memory is short. Limits are never exceeded, and an op that
// takes memory runs only if the microbatches in flight can then still be finished one by one, oldest first. `tails` by
// op, as of auto_bounds. Returns nothing if it gets stuck, which requires a limit so tight that gradients held until W
// do not fit beside the rest of a microbatch.
Orders list_schedule(const PlacedProblem& problem, const OpTable& table, const std::vector<std::int64_t>& tails,
                     const ListRules& rules);

}  // namespace sluice::sim
