#pragma once

#include "model/schedule/schedule.h"

namespace sluice::model {

// Checks the communication of a schedule whose ops have been checked: every hop between two ranks has one send, behind
// the op that makes it, and one receive, before the op that reads it; both ends of a pair of ranks have them in the
// same order (messages carry no tags); nothing else is sent. Throws ScheduleError naming the first place where that
// fails.
void check_communication(const Schedule& schedule);

}  // namespace sluice::model
