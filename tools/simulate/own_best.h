#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/scenario/scenario.h"
#include "tools/command/scenario_flags.h"

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

}  // namespace sluice::tools
