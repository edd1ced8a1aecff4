#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::tools {

// An option of a command, or an operand (an argument without a flag).
struct OptionEntry {
  std::vector<std::string> names;  // "-o", "--output"; an operand has one name
  std::string description;
  std::string group;               // heading in the help
  std::string type;                // of the value: "INT", "FLOAT", "TEXT"; empty: takes no value
  std::vector<std::string> words;  // known values
  bool closed = false;             // `words` are all values
  bool files = false;              // the value may be a file
  bool repeated = false;           // takes several values
  bool required = false;
  bool common = true;  // part of the short help
};

// A command with its options and subcommands, as plain data from which the help, the manual page and the completion
// scripts are written.
struct CommandEntry {
  std::string path;  // "sluice simulate"
  std::string description;
  std::string footer;
  std::string group;  // heading among its siblings
  std::vector<OptionEntry> options;
  std::vector<OptionEntry> operands;
  std::vector<CommandEntry> subcommands;
};

// Returns the tree of `app`, which may be a subcommand. Hidden options and subcommands (without a group) are left out.
CommandEntry command_tree(const CLI::App& app);

// Returns the first sentence of a description, or its first line where that is shorter, without the full stop.
std::string first_sentence(const std::string& description);

// Returns "simulate" for "sluice simulate".
std::string last_word(const std::string& path);

}  // namespace sluice::tools
