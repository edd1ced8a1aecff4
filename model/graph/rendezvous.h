#pragma once

#include <string>

#include "model/schedule/schedule.h"

namespace sluice::model {

// How ranks execute the communication of a schedule.
enum class Exchange {
  buffered,  // a send completes immediately; a receive waits for it
  grouped,   // no buffering: a send waits for its receive, but adjacent entries of a list, with no op between them, are
             // posted together
  rendezvous,  // no buffering, and every rank executes one entry after another
};

// Executes the lists of all ranks. Returns "" if they complete, otherwise the shortest cycle of communications that
// wait for each other: "1SEND_B0 on rank 1 -> 0SEND_F1 on rank 0 -> 1SEND_B0 on rank 1", where the partner of each
// comes after the next one. Linear in the number of communications. Precondition: the schedule has communication.
std::string hanging_cycle(const Schedule& schedule, Exchange exchange);

// Returns the schedule with the communication of a simple executor: each receive immediately before the op that reads
// it, each send immediately after the op that produces it. Shows whether receives must be posted earlier.
Schedule with_receives_just_in_time(const Schedule& schedule);

}  // namespace sluice::model
