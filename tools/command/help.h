#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "tools/command/command_tree.h"

namespace sluice::tools {

// Returns the text of `--help`: usage, description, operands, options by group, and one line per subcommand. Lines are
// wrapped to 100 columns, except examples (indented lines of the description).
std::string help_text(const CommandEntry& command);

// Makes CLI11 print `help_text`.
class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

}  // namespace sluice::tools
