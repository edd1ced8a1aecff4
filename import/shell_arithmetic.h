#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::imports {

// A variable of a script; a scalar is an array of one element. `known`: its values contain nothing that only a shell
// knows.
struct ShellVariable {
  std::vector<std::string> values;
  bool known = true;
  bool operator==(const ShellVariable&) const = default;
};
using ShellVariables = std::map<std::string, ShellVariable>;

// Computes an integer expression of $((...)): + - * / %, comparisons, !, &&, || and parentheses. Null if a value is not
// known, and for other operators.
std::optional<std::int64_t> shell_arithmetic(std::string_view text, const ShellVariables& variables);

}  // namespace sluice::imports
