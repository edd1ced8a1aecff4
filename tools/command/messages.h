#pragma once

#include <string_view>

#include "model/namespaces.h"

namespace sluice::tools {

// Prints "sluice: MESSAGE" on one line of standard error, its control characters escaped; an empty message is not
// printed. A standard error that is closed or full loses the message and nothing else.
void print_message(std::string_view message);

// Opens /dev/null on those of the descriptors 0 to 2 that are closed, so that no file that is opened later takes their
// place. Reading the standard input and writing the standard output fail then.
void open_standard_descriptors();

}  // namespace sluice::tools
