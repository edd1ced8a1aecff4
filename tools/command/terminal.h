#pragma once

#include <string>

#include "traces/text/gantt.h"

namespace sluice::tools {

// Columns of the terminal on standard output, or `fallback` if it is none.
int terminal_columns(int fallback);

// Colour for standard output under `--color auto|always|never`: "auto" means on a terminal, never with NO_COLOR or
// TERM=dumb.
TextColour terminal_colour(const std::string& wish);

}  // namespace sluice::tools
