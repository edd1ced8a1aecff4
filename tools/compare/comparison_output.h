#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "traces/compare/comparison.h"

namespace sluice::tools {

// Returns a comparison as text for the terminal.
std::string comparison_table(const Comparison& comparison);

// Returns a comparison as JSON (sluice.comparison/1, docs/formats.md).
nlohmann::ordered_json comparison_document(const Comparison& comparison);

}  // namespace sluice::tools
