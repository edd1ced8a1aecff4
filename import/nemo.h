#pragma once

#include <string>
#include <string_view>

#include "import/import.h"

namespace sluice::imports {

// Whether a text is a YAML file with sections of NeMo (model, trainer) or of Megatron-Bridge (model, train).
bool is_nemo(std::string_view text);

// Reads a configuration of NeMo 1 or Megatron-Bridge (YAML). Throws InputError naming the line and the key.
Imported import_nemo(std::string_view text, const std::string& source);

// Returns the overrides of a recipe of Megatron-Bridge, in YAML, that have the same effect as Megatron-LM's arguments
// (megatron_arguments) with a number of chunks per rank. Source of the names: "Megatron-LM to Megatron Bridge Guide",
// docs.nvidia.com/nemo/megatron-bridge, and its training/comm_overlap.py and mixed_precision.py.
std::string bridge_overrides(const std::string& megatron_arguments, int chunks);

}  // namespace sluice::imports
