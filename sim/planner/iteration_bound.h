#pragma once

#include <span>
#include <vector>

#include "model/scenario/costs.h"
#include "model/schedule/schedule.h"
#include "model/units.h"

namespace sluice::sim {

// Times of all slices of one microbatch on a stage, each op rounded as by pricing, and of what follows the last one.
struct StageTimes {
  Duration forward{};
  Duration gradient{};  // of the inputs, with recomputation; includes that of the weights unless split
  Duration weight{};
  Duration first_forward{};
  Duration last_gradient{};  // of the first slice
  Duration after{};          // the optimizer step, and the gradient reduction if it does not overlap
};

// Returns the times of every stage. Precondition: one shape.
std::vector<StageTimes> stage_times(const Schedule& schedule, const ScenarioCosts& costs);

// Lower bound of the iteration time with `microbatches` microbatches: the maximum over the ranks of the path of the
// first slice to the rank, its compute time, and the path of the last gradient from it. Precondition: one shape, and
// equally many microbatches per route.
Duration least_iteration(const Schedule& schedule, int microbatches, const ScenarioCosts& costs);

// The same for stages with other times. `joint`: the two ops of a joint block may take as little as half of their sum.
Duration least_iteration(const Schedule& schedule, int microbatches, std::span<const StageTimes> stages, bool joint);

}  // namespace sluice::sim
