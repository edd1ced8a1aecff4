#pragma once

#include <span>
#include <string>

#include "model/cost/explain.h"
#include "model/scenario/setup.h"
#include "sim/fit_advice.h"
#include "sim/prediction.h"

namespace sluice::tools {

// The document of `simulate --json`, schema sluice.simulation/1 (docs/formats.md); with `explained` ops, if
// there are any, and with `remedies` if it does not fit.
std::string simulation_json(const Setup& setup, const Prediction& prediction, std::span<const ExplainedOp> explained,
                            std::span<const Remedy> remedies);

// The terminal's summary and table by rank; of what does not fit, `remedies`.
std::string simulation_table(const Setup& setup, const Prediction& prediction, std::span<const Remedy> remedies);

}  // namespace sluice::tools
