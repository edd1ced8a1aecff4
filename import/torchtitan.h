#pragma once

#include <string>
#include <string_view>

#include "import/import.h"

namespace sluice::imports {

// Whether a text is a TOML file with tables of torchtitan.
bool is_torchtitan(std::string_view text);

// Reads a job configuration of torchtitan (TOML). Throws InputError naming the line and the key.
Imported import_torchtitan(std::string_view text, const std::string& source);

}  // namespace sluice::imports
