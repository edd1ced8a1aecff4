#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// Returns the length in bytes of the first character of a text that is not empty; 0 if it is invalid UTF-8 or a
// noncharacter.
std::size_t utf8_length(std::string_view text);

// Control characters that a terminal would obey: those of ASCII except tab and newline, and U+0080 to U+009F in UTF-8.
// Names in input files must not have any: they are printed.
bool has_control_characters(std::string_view text);

// Returns `text` with its control characters, and bytes that are not UTF-8, as \xNN; with `one_line` tabs and newlines,
// too.
std::string printable(std::string_view text, bool one_line = false);

}  // namespace sluice::model
