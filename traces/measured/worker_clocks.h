#pragma once

#include "traces/measured/measured_run.h"

namespace sluice::traces {

// Puts the clocks of all workers on one, with a note, if they contradict each other: a pass starts over 1 ms before the
// pass of the neighbouring stage that it needs has ended, or collectives of two replicas end over 10 ms apart. Within a
// replica, clocks are aligned by the ends of sends and receives in both directions, or by the order of passes
// (align_clocks); replicas by the ends of collectives that they share. Clocks are assumed not to drift. What remains is
// in the note.
void align_worker_clocks(MeasuredRun& run);

}  // namespace sluice::traces
