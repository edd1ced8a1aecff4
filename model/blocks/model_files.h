#pragma once

#include <string>
#include <string_view>

#include "model/blocks/model.h"
#include "model/input/json_reader.h"

namespace sluice::model {

// Reads a description of a model: a Hugging Face config.json (with a model_type), layers made of blocks (with
// "layers"; docs/formats.md, Models) or Megatron-LM's names (transformer_from_json). Throws InputError naming the file
// and the key.
Model model_from_json(JsonReader reader);
Model read_model(const std::string& path);
// Parses the text of such a file.
Model parse_model(std::string_view text, const std::string& source);

}  // namespace sluice::model
