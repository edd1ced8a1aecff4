#pragma once

#include <string>

#include "model/scenario/scenario.h"

namespace sluice::tools {

// Returns a warning if the scenario's calibration was made from another model, framework, precision or GPU; "" if not.
std::string calibration_warning(const Scenario& scenario);

}  // namespace sluice::tools
