#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/scenario/setup.h"
#include "sim/prediction.h"
#include "traces/report/report.h"

namespace sluice::tools {

// A scenario, ready and simulated, with its memory curves: what pictures and reports draw.
struct SimulatedRun {
  std::unique_ptr<Setup> setup;
  Prediction prediction;
  std::string scenario;  // JSON
};

// The second run of `--compare-with WORD`. A word that names a file (with a `/`, ending in .json or .csv, or of a file
// that is there) is a scenario of its own, which no flag touches. Any other word is a family: the run is `document`,
// the first run's scenario as ScenarioFlags gives it for `file`, with that schedule. Throws InputError, ScheduleError.
SimulatedRun second_run(const std::string& word, const nlohmann::json& document, const std::string& file);

// What a rank has for the tensors that its memory curve counts: the device's memory less what is reserved, over the
// allocator's overhead. None without a model and a cluster.
std::optional<std::int64_t> tensor_capacity(const Setup& setup, const Prediction& prediction);

// The scenario as its reader wrote it where no flag changed it: the text of `file`; else `document`, which flags were
// laid over.
std::string scenario_text(const nlohmann::json& document, const std::string& file);

// "zb-v, 4 ranks, 8 microbatches"
std::string run_title(const Schedule& schedule);

// Words as a shell reads them back, with `sluice` for the program: "sluice simulate 'a b.json'".
std::string shell_line(const std::vector<std::string>& arguments);

// A run for pictures. Refers to `setup` and `prediction`, which must have kept its memory curves.
DrawnRun drawn_run(const Setup& setup, const Prediction& prediction);

// One run of a report. Refers to `setup` and `prediction`, which must have kept its memory curves.
ReportRun report_run(const Setup& setup, const Prediction& prediction, std::string scenario);

// Writes the report of a run, and of a second one if there is one.
void write_simulation_report(const std::string& path, const Setup& setup, const Prediction& prediction,
                             const std::string& scenario, const SimulatedRun* second, const std::string& command_line);

}  // namespace sluice::tools
