#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "model/namespaces.h"

namespace sluice::tools {

// Adds the flag of a file that the command writes.
CLI::Option* add_output(CLI::App& command, const std::string& flags, std::string& value,
                        const std::string& description);

// Refuses an output that is the same file as another output or as a file that the command reads; a checkpoint may
// replace the one that it continues. Throws InputError naming the flags.
void check_outputs(const CLI::App& command);

}  // namespace sluice::tools
