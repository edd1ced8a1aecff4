#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "import/shell_words.h"
#include "model/namespaces.h"

namespace sluice::imports {

// A simple command, with the variables that are set for it alone.
struct ShellCommand {
  std::vector<ShellWord> words;
  std::map<std::string, std::string> environment;
};

// A variable whose value depends on a test that cannot be decided. It is expanded to "$NAME".
struct ShellChoice {
  std::int64_t line = 0;           // of the test
  std::vector<std::string> words;  // of the values in which the alternatives differ
};

// The simple commands that a shell script runs or may run, and the variables after the last one.
struct ShellScript {
  std::vector<ShellCommand> commands;
  ShellVariables variables;
  std::map<std::string, ShellChoice> choices;
  std::map<std::string, std::string> files;  // written from here-documents
  std::vector<std::string> notes;            // "line 3: source a.sh is not read", for example
};

// Reads a script without running anything. Follows assignments, arrays, expansions (shell_words.h), tests, if, case,
// for,
// &&, ||, functions, subshells and here-documents. Where a test depends on what only a shell knows, all branches are
// read, and variables that then differ are choices. What only a shell knows stays as it is written: variables that the
// script does not set, and the output of commands. Throws InputError naming the line for what it does not follow.
ShellScript read_shell(std::string_view text, const std::string& source);

// Splits one line into words: quotes and backslashes as in a script; all other characters are ordinary. Throws
// InputError.
std::vector<ShellWord> split_words(std::string_view text, const std::string& source);

}  // namespace sluice::imports
