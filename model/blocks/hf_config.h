#pragma once

#include "model/blocks/model.h"
#include "model/input/json_reader.h"

namespace sluice::model {

// What the keys of a config.json of another type suggest: "its keys suggest attention and experts", and how to write
// such a model.
std::string suggested_blocks(const JsonReader& reader);

// Reads a config.json of such a type: the layers of its language model. Irrelevant keys are ignored. Throws InputError
// naming the file and the key.
Model model_from_hf_config(JsonReader reader);

}  // namespace sluice::model
