#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::tools {

// An option of a command, or an operand (the words that are no options).
struct OptionEntry {
  std::vector<std::string> names;  // "-o", "--output"; of an operand its one name
  std::string description;
  std::string group;               // its heading in the help
  std::string type;                // of its value, as the help shows it; empty: takes none
  std::vector<std::string> words;  // that the value may be
  bool files = false;              // the value may be a file
  bool repeated = false;           // takes several values
};

// A command as its help knows it, as plain data, for those who write it in other forms.
struct CommandEntry {
  std::string path;  // "sluice simulate"
  std::string description;
  std::vector<OptionEntry> options;
  std::vector<OptionEntry> operands;
  std::vector<CommandEntry> subcommands;
};

// Walks `app`. Hidden options (without a group) and hidden subcommands are left out.
CommandEntry command_tree(const CLI::App& app);

// The first sentence of a description, or its first line where that is shorter, without the full stop.
std::string first_sentence(const std::string& description);

// "simulate" of "sluice simulate".
std::string last_word(const std::string& path);

// A flag --help-man that prints the manual page of `app`, in roff.
void add_man_flag(CLI::App& app);
std::string man_page(const CommandEntry& command);

// A script that completes the command's words in a shell: bash, zsh or fish.
std::string bash_completion(const CommandEntry& command);
std::string zsh_completion(const CommandEntry& command);
std::string fish_completion(const CommandEntry& command);

}  // namespace sluice::tools
