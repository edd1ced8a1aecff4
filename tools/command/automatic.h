#pragma once

#include "sim/planner/auto_setup.h"

namespace sluice::tools {

// Calls `planned_setup`, with a progress line during the search, which the first SIGINT or SIGTERM ends.
PlannedSetup planned_with_progress(const Scenario& scenario);

// Returns the exit code of the signal that ended the search, or else `exit_code`.
int interrupted_or(int exit_code, const PlannedSetup& planned);

}  // namespace sluice::tools
