#pragma once

#include <string>

#include "model/scenario/setup.h"
#include "sim/prediction.h"

namespace sluice::tools {

// The document of `simulate --json`, schema sluice.simulation/1 (docs/formats.md).
std::string simulation_json(const Setup& setup, const Prediction& prediction);

// The terminal's summary and table by rank.
std::string simulation_table(const Setup& setup, const Prediction& prediction);

}  // namespace sluice::tools
