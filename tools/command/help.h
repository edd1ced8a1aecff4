#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "tools/command/command_tree.h"

namespace sluice::tools {

// Returns the text of `--help`: usage, description, operands, options by group, and one line per subcommand. Lines are
// wrapped to 100 columns, except examples (indented lines of the description). The short form has the common options, a
// line each, and the first paragraph of the description with its examples.
std::string help_text(const CommandEntry& command, bool all);

// Returns a Markdown table of the settings of scenarios: key, flags, meaning, default, and the commands that read it.
std::string settings_table();

// Makes CLI11 print `help_text`.
class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

}  // namespace sluice::tools
