#pragma once

#include <memory>

#include "model/scenario/setup.h"

namespace sluice::sim {

// Returns the setup of a scenario that offloads activations, of its own schedule or of this one. Forwards wait for the
// copies of as few forwards before them (OffloadOptions::window) as does not lengthen the iteration. Throws as Setup.
std::unique_ptr<Setup> offload_setup(const Scenario& scenario, const Schedule* schedule = nullptr);

}  // namespace sluice::sim
