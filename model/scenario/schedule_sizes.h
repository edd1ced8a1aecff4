#pragma once

#include "model/scenario/scenario.h"
#include "model/schedule/schedule.h"

namespace sluice::model {

// Gives a schedule that was written without a sequence length the sizes of the scenario. Throws InputError if those of
// another schedule do not agree with the scenario's.
void set_sizes(const Scenario& scenario, Schedule& schedule);

}  // namespace sluice::model
