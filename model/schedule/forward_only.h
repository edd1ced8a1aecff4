#pragma once

#include "model/schedule/schedule.h"

namespace sluice::model {

// Makes all microbatches forward-only if no list has a backward. Schedules that are read from files call it.
void mark_forward_only(ScheduleParts& parts);

// Returns the schedule with the forwards alone, in their order, and what passes their results on. Throws ScheduleError
// if it has no flush: there its batches are told apart by optimizer steps alone.
Schedule without_backward(const Schedule& schedule);

}  // namespace sluice::model
