#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/scenario/setup.h"
#include "sim/engine/predict.h"
#include "traces/report/report.h"

namespace sluice::tools {

// Throws InputError if this build has no engine for live pages, with what to install.
void require_live_engine();

// Returns what makes the report of a run live. `document` is its scenario, whose paths are relative to `folder`: the
// files that it names become part of it. Throws InputError for a scenario that a page cannot simulate: one with the
// cost file or the cluster file of a user, or with more than kMostLiveOps ops.
LivePage live_page(const Setup& setup, const Prediction& prediction, const nlohmann::json& document,
                   const std::string& folder);

}  // namespace sluice::tools
