#pragma once

#include "model/input/json_reader.h"

namespace sluice::bench::accuracy {

// What a table does not say: benchmarks/accuracy/scenarios/NAME.json.
Json base_of(const char* name);

}  // namespace sluice::bench::accuracy
