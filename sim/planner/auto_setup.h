#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "model/scenario/setup.h"
#include "sim/planner/auto_schedule.h"

namespace sluice::sim {

// A scenario ready to simulate, and, where its schedule is automatic, how that was found.
struct PlannedSetup {
  std::unique_ptr<Setup> setup;
  std::optional<AutoResult> automatic;
};

// `Setup(scenario)` for any schedule but an automatic one. That is made here for the scenario's own prices, slow ranks
// and links included, and its memory: what it says is simulated, collectives, steps and shared links and all, and what
// it holds counts receive buffers. A cap in bytes is the device's: what is reserved and the allocator's overhead come
// off it. The seed is the scenario's. `progress` is told the seconds gone by and the best makespan.
// Throws as Setup does, InputError for choices that do not go together, DoesNotFit if no schedule keeps within memory.
PlannedSetup planned_setup(const Scenario& scenario, const std::function<void(double, Duration)>& progress = {});

}  // namespace sluice::sim
