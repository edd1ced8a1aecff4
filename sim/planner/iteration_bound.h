#pragma once

#include <span>
#include <vector>

#include "model/scenario/costs.h"
#include "model/schedule/schedule.h"
#include "model/units.h"

namespace sluice::sim {

// Times of all slices of one microbatch on a stage, each op rounded as by pricing, and of what follows the last one.
// `forward` and `gradient` include the transfers that they begin if these block the rank; the paths include them
// anyway.
struct StageWork {
  Duration forward{};
  Duration gradient{};  // of the inputs, with recomputation; includes that of the weights unless split
  Duration weight{};
  Duration forward_path{};   // until the next stage has the first slice
  Duration gradient_path{};  // until the previous stage has the gradient of the first slice
  Duration after{};          // the optimizer step, and the gradient reduction if it does not overlap
  Duration blocked{};  // at most this part of the forwards and gradients of a rank is a transfer without an op after it
};

// Returns the times of every stage without transfers. Precondition: one shape.
std::vector<StageWork> compute_times(const Schedule& schedule, const ScenarioCosts& costs);
// Returns what transfers without contention add to them.
std::vector<StageWork> transfer_times(const Schedule& schedule, const ScenarioCosts& costs);
void add_times(StageWork& times, const StageWork& more);

// Lower bound of the iteration time with `microbatches` microbatches: the maximum over the ranks of the path of the
// first slice to the rank, its compute time, and the path of the last gradient from it. Precondition: one shape, and
// equally many microbatches per route.
Duration least_iteration(const Schedule& schedule, int microbatches, const ScenarioCosts& costs);
// The same with the times of stages that compute_times returns.
Duration least_iteration(const Schedule& schedule, int microbatches, const ScenarioCosts& costs,
                         std::vector<StageWork> stages);

// The same with any shapes, of the compute time alone: the maximum over the ranks of the sum over their ops.
Duration least_compute(const Schedule& schedule, const ScenarioCosts& costs);

// The same for stages with other times. `joint`: the two ops of a joint block may take as little as half of their sum.
Duration least_iteration(const Schedule& schedule, int microbatches, std::span<const StageWork> stages, bool joint);

}  // namespace sluice::sim
