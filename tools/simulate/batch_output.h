#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/scenario/scenario.h"
#include "sim/planner/batch_setup.h"

namespace sluice::tools {

// Returns "documents" of the document of `simulate`: the batch, and the time and memory of its replicas.
nlohmann::ordered_json batch_json(const Scenario& scenario, const BatchRun& run);

// Returns at most three lines on it: what the microbatches hold, what their differences cost, and what packing and
// order save.
std::string batch_text(const nlohmann::ordered_json& documents);

}  // namespace sluice::tools
