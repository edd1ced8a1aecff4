#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::imports {

// Returns whether one of the patterns, between blanks, matches a name. A '*' in a pattern stands for any characters.
bool lists_name(std::string_view patterns, std::string_view name);

// Returns the words of a printed list such as ['p2p'].
std::vector<std::string> words_of_list(std::string_view value);

}  // namespace sluice::imports
