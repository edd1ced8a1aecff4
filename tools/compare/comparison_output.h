#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "traces/compare/comparison.h"

namespace sluice::tools {

// Returns a comparison as JSON (sluice.comparison/1, docs/formats.md).
nlohmann::ordered_json comparison_document(const Comparison& comparison);
// Returns it as text for the terminal.
std::string comparison_text(const Comparison& comparison, const nlohmann::ordered_json& document);

}  // namespace sluice::tools
