#pragma once

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "tools/command/document.h"
#include "tools/simulate/simulation_report.h"

namespace sluice::tools {

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
