#pragma once

#include <string>
#include <string_view>

#include "import/import.h"

namespace sluice::imports {

// Whether a text is a YAML file with sections of NeMo (model, trainer) or of Megatron-Bridge (model, train).
bool is_nemo(std::string_view text);

// Reads a configuration of NeMo 1 or Megatron-Bridge (YAML). Throws InputError naming the line and the key.
Imported import_nemo(std::string_view text, const std::string& source);

}  // namespace sluice::imports
