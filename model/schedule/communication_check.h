#pragma once

#include "model/schedule/schedule.h"

namespace sluice::model {

// Checks the communication of a schedule whose ops are valid: every transfer between two ranks has one send, after the
// op that produces it, and one receive, before the op that reads it; both ends of a pair of ranks have their messages
// in the same order (messages have no tags); nothing else is sent. Throws ScheduleError naming the first violation.
void check_communication(const Schedule& schedule);

}  // namespace sluice::model
