#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/scenario/setup.h"
#include "model/timeline/causes.h"
#include "model/timeline/critical_path.h"
#include "sim/engine/predict.h"
#include "traces/report/report.h"

namespace sluice::tools {

// A simulated scenario with its memory curves, for figures and reports.
struct SimulatedRun {
  std::unique_ptr<Setup> setup;
  Prediction prediction;
  std::string scenario;              // JSON
  std::vector<std::string> adapted;  // what was changed to suit the schedule family
};

// Simulates the second run of `--compare-with WORD`. A word with a `/`, ending in .json or .csv, or naming an existing
// file is a scenario file, to which flags do not apply. Any other word is a family: the run is `document`, the first
// run's scenario document for `file`, with that schedule, adapted to it. Throws InputError, ScheduleError.
SimulatedRun second_run(const std::string& word, const nlohmann::json& document, const std::string& file);

// Returns the bytes per rank that are available to the tensors of its memory curve: the device's memory minus the
// reserved part, divided by the allocator's overhead. Empty without a model and a cluster.
std::optional<std::int64_t> tensor_capacity(const Setup& setup, const Prediction& prediction);

// Returns `text`, the contents of the scenario file, if no flag changed it, otherwise `document`, which includes the
// flags. An empty text: no file.
std::string scenario_text(const nlohmann::json& document, const std::string& text);

// Returns the name of a setup's schedule: its family, "auto", or the name of its file without folder and extension.
std::string schedule_name(const Setup& setup);

// Returns for example "zb-v, 4 ranks, 8 microbatches".
std::string run_title(const Setup& setup);

// Returns a shell command line with `sluice` as the program: "sluice simulate 'a b.json'".
std::string shell_line(const std::vector<std::string>& arguments);

// Returns the figures of a report that a timeline alone has: bubble, span, critical path.
std::vector<ReportMetric> timeline_headline(const Metrics& metrics, const std::vector<IdleByCause>& idle,
                                            const CriticalPath& path);

// Returns a run to draw. Refers to `setup` and `prediction`, which must contain memory curves.
DrawnRun drawn_run(const Setup& setup, const Prediction& prediction);

// Returns a run of a report. Refers to `setup` and `prediction`, which must contain memory curves.
ReportRun report_run(const Setup& setup, const Prediction& prediction, std::string scenario);

// Returns the report of a run and, unless null, of a `second` run. Refers to its arguments.
Report simulation_report(const Setup& setup, const Prediction& prediction, const std::string& scenario,
                         const SimulatedRun* second, const std::string& command_line);

// Writes the report of a run and, unless null, of a `second` run. Throws InputError.
void write_simulation_report(const std::string& path, const Setup& setup, const Prediction& prediction,
                             const std::string& scenario, const SimulatedRun* second, const std::string& command_line);

}  // namespace sluice::tools
