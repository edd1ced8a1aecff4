#pragma once

#include <span>
#include <string>

#include "model/cost/explain.h"
#include "model/scenario/setup.h"
#include "sim/fit_advice.h"
#include "sim/planner/auto_schedule.h"
#include "sim/prediction.h"

namespace sluice::tools {

// The document of `simulate --json`, schema sluice.simulation/1 (docs/formats.md); with `explained` ops, if
// there are any, with `remedies` if it does not fit, and with how the schedule was found if it is `automatic`.
std::string simulation_json(const Setup& setup, const Prediction& prediction, std::span<const ExplainedOp> explained,
                            std::span<const Remedy> remedies, const AutoResult* automatic = nullptr);

// The terminal's summary and table by rank; of what does not fit, `remedies`; of an automatic schedule, how it was
// found.
std::string simulation_table(const Setup& setup, const Prediction& prediction, std::span<const Remedy> remedies,
                             const AutoResult* automatic = nullptr);

// "search over v: 1.5 % over the lower bound 10 ms; 3 % faster than zb-v; 0.2 s": one line.
std::string automatic_line(const AutoResult& automatic);

}  // namespace sluice::tools
