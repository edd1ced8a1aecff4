#pragma once

#include <atomic>

#include "sim/planner/auto_setup.h"

namespace sluice::tools {

// Calls `planned_setup`, with a progress line during the search, which ends early once `stop` is set.
PlannedSetup planned_with_progress(const Scenario& scenario, const std::atomic<bool>* stop = nullptr);

}  // namespace sluice::tools
