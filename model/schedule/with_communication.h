#pragma once

#include "model/schedule/schedule.h"

namespace sluice::model {

// The schedule with its sends and receives written down where PyTorch's pipelining puts them (`_add_send_recv`): the
// ranks take steps in turn, each as far as what it needs was sent; a send stands right behind what makes it, and its
// receive at that moment at the end of what the receiver has done. So every send finds its receiver there: the order
// runs without any buffering. Throws ScheduleError if the ops alone deadlock.
Schedule with_communication(const Schedule& schedule);

// The schedule with every I that its W directly follows made one B, as PyTorch merges them (`_merge_bw`). Communication
// is dropped.
Schedule with_merged_backwards(const Schedule& schedule);

}  // namespace sluice::model
