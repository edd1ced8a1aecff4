#pragma once

#include <optional>
#include <span>
#include <string>

#include "import/shell_arithmetic.h"

namespace sluice::imports {

// A word between [ and ], or [[ and ]].
struct ShellOperand {
  std::string text;
  bool known = true;     // contains nothing that only a shell knows
  bool pattern = false;  // may match as a pattern: in [[ ]], without quotes
};

// Evaluates a test without looking at files or the environment. Null if it cannot be decided.
std::optional<bool> shell_test(std::span<const ShellOperand> operands, const ShellVariables& variables);

// Whether a text matches a pattern of `case` or of == in [[ ]]. Null if one of them is not known.
std::optional<bool> shell_matches(const ShellOperand& text, const ShellOperand& pattern);

}  // namespace sluice::imports
