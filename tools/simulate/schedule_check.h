#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/scenario/scenario.h"
#include "model/schedule/schedule.h"

namespace sluice::tools {

// The result of one check of `--check`.
struct ScheduleCheck {
  std::string check;
  bool good = true;
  bool note = false;  // a failure is no error: the schedule runs, but not with this kind of communication
  std::string detail;

  const char* word() const { return good ? "ok" : note ? "note" : "error"; }
};

// Runs the checks that a constructed schedule has not passed yet. `source` names it in errors.
void check_further(const Schedule& schedule, const std::string& source, std::vector<ScheduleCheck>& out);

// Runs all checks on the schedule of a scenario. Throws InputError.
std::vector<ScheduleCheck> check_schedule(const Scenario& scenario, bool merge_backwards);

// Returns the document of `schedule --check --json` (sluice.schedule_check/1).
nlohmann::ordered_json checks_document(std::span<const ScheduleCheck> verdicts);

}  // namespace sluice::tools
