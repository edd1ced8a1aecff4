#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/scenario/scenario.h"
#include "tools/command/document.h"
#include "tools/command/scenario_flags.h"
#include "tools/simulate/simulation_report.h"

namespace sluice::tools {

// Chooses for the schedule family of a document what `given` leaves open, by simulation, where the analytic cost model
// applies: the number of chunks where the family's placement leaves it open, of 2, 4 or 8 slices where it slices
// sequences, and the layers per stage. `given` is the document before it was adapted to the family, and the keys
// `fixed` are given too. `read` returns the scenario of a document. Appends what changed to `adapted`: "vpp 2 -> 4",
// "slices 1 -> 2", "stage_layers even -> [9,8,8,7]". Does nothing where the document is invalid, for a file and for an
// automatic schedule, and returns whether it chose. Once `*stop` is set, the best so far is chosen.
bool choose_own_best(nlohmann::json& document, const nlohmann::json& given, const std::vector<std::string>& fixed,
                     const std::function<Scenario(const nlohmann::json&)>& read, ScenarioFlags::Adapted& adapted,
                     const std::atomic<bool>* stop = nullptr);

// Simulates the runs of `--compare-with`, in parallel. A schedule that cannot run the scenario `document` of `file`
// gets the reason. Throws InputError for an unknown name, with all names, for a scenario file that cannot be simulated,
// and with the first reason if no run can be simulated. Once `*stop` is set, searches end with the best so far.
std::vector<OtherRun> compared_runs(const std::vector<std::string>& words, const nlohmann::json& document,
                                    const std::string& file, const std::atomic<bool>* stop = nullptr);

// Returns the rows of the comparison: the first run, then `others`, as in sluice.simulation/1.
OrderedJson comparison_json(const Setup& first, const Prediction& prediction, std::span<const OtherRun> others);

// Returns the sizes that are chosen for a schedule, "2 chunks, layers 8x4", of a row.
std::string comparison_parameters(const OrderedJson& row);

// Returns a table of these rows. Sizes that are the same in all rows are left out.
std::string comparison_table(const OrderedJson& rows);

}  // namespace sluice::tools
