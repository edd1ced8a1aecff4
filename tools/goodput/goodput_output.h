#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/command/document.h"
#include "tools/goodput/goodput_request.h"

namespace sluice::tools {

// Simulates a request and returns its results (docs/formats.md, sluice.goodput/1).
OrderedJson goodput_json(const GoodputRequest& request, const GoodputSetting& setting);

// Returns the results as text on one screen, and the use of time as CSV, one row per cause.
std::string goodput_text(const OrderedJson& results);
std::string goodput_csv(const OrderedJson& results);
std::string assumptions_text(const OrderedJson& assumptions);

}  // namespace sluice::tools
