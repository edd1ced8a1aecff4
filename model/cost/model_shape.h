#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "model/input/json_reader.h"
#include "model/workload/transformer.h"

namespace sluice::model {

// The sizes of a model that determine the times of its parts, by Megatron-LM's names: sizes of MLPs that it does not
// have are absent. The number of layers is none of them.
using ModelShape = std::map<std::string, std::int64_t>;

ModelShape model_shape_of(const Transformer& model);

// Reads an object with some of these sizes. Throws InputError.
ModelShape model_shape_from_json(JsonReader reader);

// Throws InputError "SOURCE: /shape/KEY: ..." if the model has another size than the one that was measured.
void check_model_shape(const ModelShape& measured, const std::string& source, const Transformer& model);

}  // namespace sluice::model
