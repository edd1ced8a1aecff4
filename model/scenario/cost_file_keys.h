#pragma once

#include "model/input/json_reader.h"

namespace sluice::model {

// Throws InputError for a key of a scenario's `parallelism` that changes only times of ops, which with a cost file are
// those of its measurements, and has a value other than its default.
void check_cost_file_keys(JsonReader parallelism);

}  // namespace sluice::model
