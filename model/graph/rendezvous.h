#pragma once

#include <string>

#include "model/schedule/schedule.h"

namespace sluice::model {

// How ranks exchange what a schedule's communication says.
enum class Exchange {
  buffered,    // a send is done at once; a receive waits for it
  grouped,     // no buffering: a send waits for its receive, but neighbours in a list, with no op between them, go
               // together
  rendezvous,  // no buffering, and every rank does one thing after the other
};

// Runs all ranks' lists and returns "" if they come to their end; otherwise the shortest ring of communications that
// wait for each other: "1SEND_B0 on rank 1 -> 0SEND_F1 on rank 0 -> 1SEND_B0 on rank 1", where each waits for a partner
// that stands behind the next. Linear in the number of communications.
// Precondition: the schedule has communication.
std::string hanging_ring(const Schedule& schedule, Exchange exchange);

// The communication of a plain executor: each receive right before the op that reads it, each send right behind the op
// that makes it. Shows whether a schedule needs its receives posted ahead.
Schedule with_receives_just_in_time(const Schedule& schedule);

}  // namespace sluice::model
