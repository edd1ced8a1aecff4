// Public header.
#pragma once

#include <string>
#include <string_view>

#include "model/schedule/schedule.h"

namespace sluice::model {

// A schedule as JSON, schema "sluice.schedule/1": placement, weight policy, slices, and each rank's list of steps. A
// step is an op "<stage><kind><microbatch>" ("2F0"), with ".<slice>" where the schedule is sliced ("2F0.1"), or a joint
// block of two ("2F4+1B3"). docs/formats.md has the whole of it.
std::string schedule_to_json(const Schedule& schedule);

// Reads it back. `source` names the text in errors. Throws InputError for text that does not parse, is out of range or
// too large, ScheduleError (naming `source`) for a schedule that is invalid.
Schedule schedule_from_json(std::string_view text, const std::string& source);

}  // namespace sluice::model
