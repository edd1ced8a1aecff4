#pragma once

#include "model/schedule/schedule.h"

namespace sluice::model {

// Returns the schedule with sends and receives inserted as PyTorch's pipelining does (`_add_send_recv`): ranks advance
// round-robin, each as far as its inputs were sent; a send is immediately after the op that produces it, and its
// receive is appended at that moment to what the receiver has done. Every send thus meets its receive, and the order
// runs without buffering. Throws ScheduleError if the ops alone deadlock.
Schedule with_communication(const Schedule& schedule);

// Returns the schedule with every I that is immediately followed by its W merged into a B, as PyTorch does
// (`_merge_bw`). Communication is dropped.
Schedule with_merged_backwards(const Schedule& schedule);

}  // namespace sluice::model
