#pragma once

#include <string>

#include "traces/text/gantt.h"

namespace sluice::tools {

// Returns the width of the terminal on standard output in columns, or `fallback` if it is not a terminal.
int terminal_columns(int fallback);

// Returns the color mode of standard output for `--color auto|always|never`. "auto" enables color on a terminal, unless
// NO_COLOR is set or TERM is dumb.
TextColour terminal_colour(const std::string& mode);

}  // namespace sluice::tools
