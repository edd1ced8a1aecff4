// Public header.
#pragma once

#include <string>
#include <string_view>

#include "model/schedule/schedule.h"

namespace sluice::model {

// The JSON format of schedules, schema "sluice.schedule/1": placement, weight policy, slices, and a list of steps per
// rank. A step is an op "<stage><kind><microbatch>" ("2F0"), with ".<slice>" where the schedule is sliced ("2F0.1"), or
// a joint block of two ("2F4+1B3"). docs/formats.md describes it in full.
std::string schedule_to_json(const Schedule& schedule);

// Parses such a text. `source` names it in errors. Throws InputError for text that does not parse, is out of range or
// too large, and ScheduleError (naming `source`) for an invalid schedule.
Schedule schedule_from_json(std::string_view text, const std::string& source);

}  // namespace sluice::model
