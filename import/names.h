#pragma once

#include <string_view>

#include "model/namespaces.h"

namespace sluice::imports {

// Returns whether one of the patterns, between blanks, matches a name. A '*' in a pattern stands for any characters.
bool lists_name(std::string_view patterns, std::string_view name);

}  // namespace sluice::imports
