#pragma once

#include <nlohmann/json.hpp>

#include "model/cost/cost_table.h"
#include "model/input/json_reader.h"

namespace sluice::model {

// The member `memory` of profiles and cost files (docs/formats.md). Throws InputError.
RunMemory run_memory_from_json(JsonReader reader);
nlohmann::ordered_json run_memory_json(const RunMemory& memory);

}  // namespace sluice::model
