#pragma once

#include "sim/planner/auto_setup.h"

namespace sluice::tools {

// Calls `planned_setup`, with a progress line during the search.
PlannedSetup planned_with_progress(const Scenario& scenario);

}  // namespace sluice::tools
