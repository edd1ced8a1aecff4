#pragma once

#include "sim/planner/auto_setup.h"

namespace sluice::tools {

// `planned_setup`, with a line on a standard error that is a terminal while it searches.
PlannedSetup planned_with_progress(const Scenario& scenario);

}  // namespace sluice::tools
