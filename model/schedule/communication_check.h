#pragma once

#include "model/schedule/schedule.h"

namespace sluice::model {

// Checks the communication of a schedule whose ops are valid: every transfer between two ranks has one send, after the
// op that produces it, and one receive, before the op that reads it; nothing else is sent. Throws ScheduleError naming
// the first violation.
void check_communication(const Schedule& schedule);

// Checks that the messages from one rank to another are received in the order in which they are sent, since messages
// have no tags. Throws ScheduleError naming the first receive of another message. Precondition: check_communication.
void check_communication_order(const Schedule& schedule);

}  // namespace sluice::model
