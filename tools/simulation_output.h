#pragma once

#include <span>
#include <string>

#include "model/cost/explain.h"
#include "model/scenario/setup.h"
#include "sim/prediction.h"

namespace sluice::tools {

// The document of `simulate --json`, schema sluice.simulation/1 (docs/formats.md); with `explained` ops, if
// there are any.
std::string simulation_json(const Setup& setup, const Prediction& prediction,
                            std::span<const ExplainedOp> explained = {});

// The terminal's summary and table by rank.
std::string simulation_table(const Setup& setup, const Prediction& prediction);

}  // namespace sluice::tools
