#pragma once

#include "model/schedule/schedule.h"

namespace sluice::model {

// Returns the schedule with sends and receives inserted as PyTorch's pipelining does (`_add_send_recv`): ranks advance
// round-robin, each as far as its inputs were sent; a send is immediately after the op that produces it, and its
// receive is appended at that moment to what the receiver has done. Every send thus meets its receive, and the order
// runs without buffering. Throws ScheduleError if the ops alone deadlock.
//
// PyTorch's runtime has inserted RESHARD and REDUCE_GRAD before, which delay a rank by two rounds after the last op of
// one of its stages. With `runtime_actions` the order is that of the runtime (2.13), otherwise that of the ops alone.
Schedule with_communication(const Schedule& schedule, bool runtime_actions = false);

// Returns the schedule without communication.
Schedule without_communication(const Schedule& schedule);

// Returns the schedule with the communication of a simple executor: each receive immediately before the op that reads
// it, each send immediately after the op that produces it. Shows whether receives must be posted earlier.
Schedule with_receives_just_in_time(const Schedule& schedule);

// Returns a schedule with communication, whose receives are moved to where they are needed, as PyTorch does with
// `defer_pp_recv` (2.13, `_defer_recv_ops`): before the op that reads them, or before a send of a lower rank to the
// rank that they come from. Both ends may then have their messages in different orders.
Schedule with_deferred_receives(const Schedule& schedule);

// Returns the schedule with every I that is immediately followed by its W merged into a B, as PyTorch does
// (`_merge_bw`). Communication is dropped.
Schedule with_merged_backwards(const Schedule& schedule);

}  // namespace sluice::model
