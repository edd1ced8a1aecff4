#pragma once

#include <optional>

#include "model/input/json_reader.h"
#include "model/workload/training.h"

namespace sluice::model {

// Reads how many tokens the experts of a rank get, of a scenario's `parallelism`: imbalance, capacity and padding. The
// dispatcher is known. Throws InputError.
void read_expert_load(JsonReader& parallelism, const std::optional<Transformer>& model, Training& training);

}  // namespace sluice::model
