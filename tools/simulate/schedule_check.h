#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/graph/communicators.h"
#include "model/scenario/scenario.h"
#include "model/schedule/schedule.h"

namespace sluice::tools {

// Where receives are posted if a schedule has no communication of its own.
enum class Receives : std::uint8_t {
  early,     // when the matching send is posted, as PyTorch's runtime places them
  deferred,  // as PyTorch does with defer_pp_recv
  late,      // immediately before the op that reads them
};

// Returns a schedule without communication with that of PyTorch's runtime.
Schedule with_receives(const Schedule& schedule, Receives receives);

// How `--check` models the communication.
struct CheckOptions {
  std::string communicators;  // a mapping's name or file; empty: all mappings
  HostWait wait = HostWait::stream;
  bool serialized = false;
  bool batched = false;
  Receives receives = Receives::early;
  bool any_communication = false;  // whether any of these four was given
  bool merge_backwards = false;
};

// Reads the value of --communicators: a mapping's name or file, and words on how messages use it. Throws InputError.
void read_communicators(const std::string& text, CheckOptions& out);

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
