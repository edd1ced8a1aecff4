#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "tools/command/command_tree.h"

namespace sluice::tools {

// Return a script that completes the command line in a shell.
std::string bash_completion(const CommandEntry& command);
std::string zsh_completion(const CommandEntry& command);
std::string fish_completion(const CommandEntry& command);

// Returns the manual page, in roff.
std::string man_page(const CommandEntry& command);

// Adds a hidden flag --help-man that prints the manual page of `app`.
void add_man_flag(CLI::App& app);

}  // namespace sluice::tools
