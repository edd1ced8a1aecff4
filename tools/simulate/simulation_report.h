#pragma once

#include <atomic>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/scenario/setup.h"
#include "sim/engine/predict.h"
#include "tools/command/scenario_flags.h"
#include "tools/simulate/report_run.h"

namespace sluice::tools {

// A simulated scenario with its memory curves, for figures and reports.
struct SimulatedRun {
  std::unique_ptr<Setup> setup;
  Prediction prediction;
  std::string scenario;            // JSON
  ScenarioFlags::Adapted adapted;  // to the schedule family
  bool interrupted = false;        // while something was searched for it
};

// A run of `--compare-with`, or the reason why its schedule cannot run the scenario.
struct OtherRun {
  std::string word;
  SimulatedRun run;
  std::string error;
  bool simulated() const { return run.setup != nullptr; }
};

// Simulates the run of `--compare-with WORD`. A word with a `/`, ending in .json or .csv, or naming an existing
// file is a scenario file, to which flags do not apply. Any other word is a family: the run is `document`, the first
// run's scenario document for `file`, with that schedule, adapted to it, and with what it leaves open chosen for that
// schedule (choose_own_best); chunks and layers per stage of the file, which are for its own schedule, are open too.
// Once `*stop` is set, searches end with the best so far. Throws InputError, ScheduleError.
SimulatedRun second_run(const std::string& word, const nlohmann::json& document, const std::string& file,
                        const std::atomic<bool>* stop = nullptr);

// Returns whether a word of `--compare-with` is a scenario file.
bool compares_with_file(const std::string& word);

// Returns `text`, the contents of the scenario file, if no flag changed it, otherwise `document`, which includes the
// flags. An empty text: no file.
std::string scenario_text(const nlohmann::json& document, const std::string& text);

// Returns a shell command line with `sluice` as the program: "sluice simulate 'a b.json'".
std::string shell_line(const std::vector<std::string>& arguments);

// Returns the report of a run and of those that it is compared with. Refers to its arguments.
Report simulation_report(const Setup& setup, const Prediction& prediction, const std::string& scenario,
                         std::span<const OtherRun> others, const std::string& command_line);

// Writes that report; with `live`, as a live page. Throws InputError.
void write_simulation_report(const std::string& path, const Setup& setup, const Prediction& prediction,
                             const std::string& scenario, std::span<const OtherRun> others,
                             std::optional<LivePage> live, const std::string& command_line);

}  // namespace sluice::tools
