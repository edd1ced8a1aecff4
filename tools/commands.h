#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tools/command/command.h"

namespace sluice::tools {

// Names and describes `app`, and adds all subcommands to it. `arguments` are argv.
std::vector<Subcommand> add_all_commands(CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace sluice::tools
