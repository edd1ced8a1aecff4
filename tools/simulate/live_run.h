#pragma once

#include <string>
#include <string_view>

#include "model/scenario/setup.h"
#include "tools/command/document.h"

namespace sluice::tools {

// The number of ops up to which a live page simulates a schedule: more would take longer than a reader waits.
inline constexpr std::int64_t kMostLiveOps = 400'000;

// The result of a request of a live page.
struct LiveResult {
  int status = 0;       // an exit code of the command (kDone, kWrongInput, kInvalidSchedule)
  std::string header;   // JSON; of a failed request its error message
  std::string columns;  // of the run's ReportData
};

// The sizes of a run that the controls of a page show.
OrderedJson live_sizes(const Setup& setup);

// Simulates a scenario for a live page. The request is a JSON object:
// - scenario: a scenario (sluice.scenario/1) without paths, except that of the schedule if `schedule` is given
// - schedule: the contents of the schedule file that the scenario names (optional)
// - cap: memory cap per rank, as of --memory-cap; ranks above it are reported (optional)
// - beside: another request, whose run is the second one of the report (optional)
// - tables: whether to return the tables of the report (default true)
// - csv: whether to return the schedule as CSV (default false)
// - document: whether to return the document of `simulate --json` (default false)
// The header has `run`, the header of ReportData, `name`, `sizes`, HTML of the report's `headline` and, if requested,
// `idle` and `ranks`; and `csv` or, if the schedule has no such form, `csv_error`; and `document`, as text.
// {"families": true} returns the families in the schema sluice.families/1 instead, with the names of `models` and
// `clusters` of the catalogue. Does not throw.
LiveResult run_live(std::string_view request);

}  // namespace sluice::tools
