#pragma once

#include <string>
#include <vector>

#include "model/scenario/scenario.h"
#include "model/scenario/setup.h"

namespace sluice::tools {

inline constexpr const char* kWaitedForCores =
    "some measured times include waits for cores; measure again on an idle machine, with at most one worker per core";

// Returns a warning if the scenario's cost file has kWaitedForCores, or its calibration was made from another model,
// framework, precision or GPU; "" if not.
std::string calibration_warning(const Scenario& scenario);

// Returns what a scenario assumes: with uniform costs the times that it does not give, otherwise what the model's file
// has that is not part of the model.
std::vector<std::string> assumed_times(const Scenario& scenario);

// Returns a line about them; "" if there are none.
std::string assumed_times_line(const Scenario& scenario);

// Returns a line about the times of `--uniform` that none of `runs`, of which the first has given them, has ops for; ""
// if there are none.
std::string unused_times_line(const std::vector<const Setup*>& runs);

}  // namespace sluice::tools
