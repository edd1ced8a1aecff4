#pragma once

#include <nlohmann/json_fwd.hpp>

#include "model/namespaces.h"

namespace sluice::tools {

// Returns all schedule families, in the schema sluice.families/1 (docs/formats.md).
nlohmann::ordered_json families_json();

}  // namespace sluice::tools
