#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "model/cost/explain.h"
#include "model/scenario/setup.h"
#include "sim/engine/fit_advice.h"
#include "sim/engine/predict.h"
#include "sim/planner/auto_schedule.h"
#include "tools/simulate/explain_output.h"

namespace sluice::tools {

// Returns the document of `simulate`, schema sluice.simulation/1 (docs/formats.md). `explained` ops are included if
// there are any, `memory` if given, `remedies` if the run does not fit in memory, and the search result of --schedule
// auto unless `automatic` is null.
nlohmann::ordered_json simulation_json(const Setup& setup, const Prediction& prediction,
                                       std::span<const ExplainedOp> explained,
                                       const std::optional<ExplainedMemory>& memory, std::span<const Remedy> remedies,
                                       const AutoResult* automatic = nullptr);

// Returns the summary and the table of ranks of this document for the terminal.
std::string simulation_text(const Setup& setup, const Prediction& prediction, const nlohmann::ordered_json& document,
                            const AutoResult* automatic = nullptr);

// Returns one line about the search of --schedule auto: source, placement, gap to the lower bound, best family, time.
std::string automatic_line(const AutoResult& automatic);

}  // namespace sluice::tools
