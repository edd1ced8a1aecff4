#pragma once

#include <string>
#include <vector>

#include "tools/command/document.h"
#include "tools/goodput/goodput_request.h"
#include "tools/simulate/sweep.h"

namespace sluice::tools {

// Simulates a request for all combinations of values of flags of `sluice goodput` or keys of its scenario. Returns a
// document of schema sluice.goodput-sweep/1 (docs/formats.md). Throws InputError if none can be simulated.
OrderedJson goodput_sweep_json(const GoodputRequest& request, const nlohmann::json& document,
                               const std::vector<SweepAxis>& axes);

// Returns the sweep as a table, one row per combination, and as CSV.
std::string goodput_sweep_text(const OrderedJson& sweep);
std::string goodput_sweep_csv(const OrderedJson& sweep);

}  // namespace sluice::tools
