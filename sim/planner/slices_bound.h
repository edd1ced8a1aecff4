#pragma once

#include "model/scenario/costs.h"
#include "model/schedule/schedule.h"
#include "model/slicing/stage_times.h"

namespace sluice {

// No cut of the sequence in `slices` slices has a shorter makespan (the argument: slices_for_schedule.h).
// Preconditions: the schedule flushes and has one route and no joint blocks; `times` are of its costs.
Duration slices_lower_bound(const Schedule& schedule, const ScenarioCosts& costs, const StageTimes& times, int slices);

}  // namespace sluice
