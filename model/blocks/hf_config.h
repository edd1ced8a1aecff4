#pragma once

#include "model/blocks/model.h"
#include "model/input/json_reader.h"

namespace sluice::model {

// Whether a model_type of Hugging Face is described by blocks, and not by a Transformer.
bool has_hf_blocks(std::string_view model_type);
// Names of all such types, in the order of the table.
std::vector<std::string> hf_block_types();

// Reads a config.json of such a type: the layers of its language model. Irrelevant keys are ignored. Throws InputError
// naming the file and the key.
Model model_from_hf_config(JsonReader reader);

}  // namespace sluice::model
