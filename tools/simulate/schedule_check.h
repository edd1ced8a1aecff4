#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/graph/host_program.h"
#include "model/scenario/scenario.h"
#include "model/schedule/schedule.h"

namespace sluice::tools {

// How `--check` models the communication; without a mapping, all of them are checked.
struct CheckOptions : CommunicatorOptions {
  bool any_communication = false;  // whether --communicators was given
  bool merge_backwards = false;

  // Reads the value of --communicators, but not where communication waits unless it says so. Throws InputError.
  void read(const std::string& text);
};

// The result of one check of `--check`.
struct ScheduleCheck {
  std::string check;
  bool good = true;
  bool note = false;  // a failure is no error: the schedule runs, but not with this kind of communication
  std::string detail;
  std::optional<CommunicatorVerdict> verdict = std::nullopt;  // of the communicators that it is about
  std::vector<std::vector<std::string>> repaired_order = {};  // by rank: a communication order that passes

  const char* word() const { return good ? "ok" : note ? "note" : "error"; }
};

// Runs the checks that a constructed schedule has not passed yet. `source` names it in errors.
void check_further(const Schedule& schedule, const std::string& source, const CheckOptions& options,
                   std::vector<ScheduleCheck>& out);

// Runs all checks on the schedule of a scenario. Throws InputError.
std::vector<ScheduleCheck> check_schedule(const Scenario& scenario, const CheckOptions& options);

// Returns the document of `schedule --check --json` (sluice.schedule_check/1).
nlohmann::ordered_json checks_document(std::span<const ScheduleCheck> verdicts);

}  // namespace sluice::tools
