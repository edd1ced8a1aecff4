#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

// A word of a command line after its expansions, and the line on which it begins, from 1.
struct ShellWord {
  std::string text;
  std::int64_t line = 1;
};

// The simple commands of a shell script, and the variables that it sets; a scalar is an array of one element.
struct ShellScript {
  std::vector<std::vector<ShellWord>> commands;
  std::map<std::string, std::vector<std::string>> variables;
};

// Reads a script of assignments and simple commands: quotes, backslashes, comments, variables and arrays ($A, ${A},
// ${A:-default}, "${A[@]}"), += and $((...)). What only a shell knows stays as it is written: variables that the script
// does not set, and the output of commands. Throws InputError naming the line for control flow and functions.
ShellScript read_shell(std::string_view text, const std::string& source);

// Splits one line into words: quotes and backslashes as in a script; all other characters are ordinary. Throws
// InputError.
std::vector<ShellWord> split_words(std::string_view text, const std::string& source);

}  // namespace sluice::model
