#pragma once

#include "model/input/json_reader.h"

namespace sluice::bench::accuracy {

// Reads benchmarks/accuracy/scenarios/NAME.json, the settings that a table does not contain.
Json base_of(const char* name);

}  // namespace sluice::bench::accuracy
