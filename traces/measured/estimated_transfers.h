#pragma once

#include "traces/measured/measured_run.h"

namespace sluice::traces {

// Adds transfers to a run that has none recorded, with a note. A receive takes the median gap between a pass on the
// neighbouring stage and the pass that waits for it; a send, which its rank waits for, the median gap between two
// passes of a rank of which the second does not wait for its input. Medians are over all steps, by rank, kind of the
// pass and kind of the one before. `runs` with recorded transfers, or with one stage, are returned as they are.
MeasuredRun with_estimated_transfers(MeasuredRun run);

}  // namespace sluice::traces
