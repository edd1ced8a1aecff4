#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::imports {

// A word of a command line after its expansions, and the line on which it begins, from 1.
struct ShellWord {
  std::string text;
  std::int64_t line = 1;
};

// What decides whether or how often a command runs, or with which variables: a word such as 'if', or one of these.
struct ShellPlace {
  static constexpr const char* kChain = "&& or ||";
  static constexpr const char* kShell = "sh -c";    // has variables of its own
  static constexpr const char* kEnvironment = "=";  // before a command, to which it is confined
  std::int64_t line = 0;                            // 0: nothing
  std::string word;
};

struct ShellCommand {
  std::vector<ShellWord> words;
  ShellPlace within;
};

// The simple commands of a script, and its variables at the end; a text is an array of one element.
struct ShellScript {
  std::vector<ShellCommand> commands;
  std::map<std::string, std::vector<std::string>> variables;
  std::map<std::string, ShellPlace> doubts;  // of variables that these may set
  std::vector<std::string> notes;            // "line 3: 'source a.sh' is not read, ...", for example
};

// Reads a script without running anything: quotes, comments, assignments of texts and arrays, $NAME, ${NAME},
// ${NAME:-default}, "${NAME[@]}", and commands in eval and `sh -c "..."`. All else stays as it is written: variables
// that the script does not set, other expansions, and as "$NAME" the variables that control flow (if, case, loops,
// functions, subshells, &&, ||) may set. Throws InputError naming the line.
ShellScript read_shell(std::string_view text, const std::string& source);

// Splits one line into words: quotes and backslashes as in a script; all other characters are ordinary. Throws
// InputError.
std::vector<ShellWord> split_words(std::string_view text, const std::string& source);

}  // namespace sluice::imports
