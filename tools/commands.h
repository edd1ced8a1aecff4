#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tools/command/command.h"

namespace sluice::tools {

// Names and describes `app`, and adds all subcommands to it. To save time, those that do not occur in `arguments`
// (argv) and so cannot be called have a name, a group and a summary, but no options, unless "completion" or
// "--help-man" occurs, which print the options of all. Returns the subcommands with options.
std::vector<Subcommand> add_commands(CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace sluice::tools
