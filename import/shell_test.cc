#include "import/shell_test.h"

#include <fnmatch.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice::imports {
namespace {

using Verdict = std::optional<bool>;

constexpr int kMostTests = 50;

Verdict negated(Verdict value) { return value ? Verdict(!*value) : value; }

std::optional<std::int64_t> shell_number(const ShellOperand& operand) {
  const std::string& text = operand.text;
  std::int64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (!operand.known || error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return value;
}

// Reads tests joined by -o and || (the weakest), -a and &&, !, and parentheses.
class ShellTest {
 public:
  ShellTest(std::span<const ShellOperand> operands, const ShellVariables& variables)
      : operands_(operands), variables_(variables) {}

  Verdict run() {
    if (operands_.empty()) return false;
    const Verdict value = either(0);
    return at_ == operands_.size() ? value : std::nullopt;
  }

 private:
  std::size_t left() const { return at_ < operands_.size() ? operands_.size() - at_ : 0; }
  bool is(std::string_view a, std::string_view b) const {
    return left() > 0 && (operands_[at_].text == a || operands_[at_].text == b);
  }

  Verdict either(int depth) {
    Verdict value = both(depth);
    while (is("||", "-o")) {
      ++at_;
      const Verdict other = both(depth);
      value = value == true || other == true ? Verdict(true) : value && other ? Verdict(false) : std::nullopt;
    }
    return value;
  }

  Verdict both(int depth) {
    Verdict value = one(depth);
    while (is("&&", "-a")) {
      ++at_;
      const Verdict other = one(depth);
      value = value == false || other == false ? Verdict(false) : value && other ? Verdict(true) : std::nullopt;
    }
    return value;
  }

  Verdict one(int depth) {
    if (left() == 0 || depth > kMostTests) {
      at_ = operands_.size() + 1;  // not a test
      return std::nullopt;
    }
    if (left() > 2 && is_binary(operands_[at_ + 1].text)) return binary();
    if (left() > 1 && is("!", "!")) {
      ++at_;
      return negated(one(depth + 1));
    }
    if (left() > 1 && is("(", "(")) {
      ++at_;
      const Verdict value = either(depth + 1);
      at_ = is(")", ")") ? at_ + 1 : operands_.size() + 1;
      return value;
    }
    const std::string& op = operands_[at_].text;
    if (left() > 1 && op.size() == 2 && op[0] == '-' && operands_[at_ + 1].text != "&&" &&
        operands_[at_ + 1].text != "||" && operands_[at_ + 1].text != ")") {
      return unary();
    }
    const ShellOperand& word = operands_[at_++];
    return word.known ? Verdict(!word.text.empty()) : std::nullopt;
  }

  static bool is_binary(std::string_view op) {
    for (const std::string_view each :
         {"=", "==", "!=", "<", ">", "=~", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"}) {
      if (op == each) return true;
    }
    return false;
  }

  Verdict unary() {
    const char op = operands_[at_].text[1];
    const ShellOperand& word = operands_[at_ + 1];
    at_ += 2;
    if (op == 'v') return variables_.contains(word.text) ? Verdict(true) : std::nullopt;
    if (!word.known || (op != 'z' && op != 'n')) return std::nullopt;  // the others look at files
    return word.text.empty() == (op == 'z');
  }

  Verdict binary() {
    const ShellOperand& a = operands_[at_];
    const std::string& op = operands_[at_ + 1].text;
    const ShellOperand& b = operands_[at_ + 2];
    at_ += 3;
    if (op == "=" || op == "==") return shell_matches(a, b);
    if (op == "!=") return negated(shell_matches(a, b));
    const auto x = shell_number(a);
    const auto y = shell_number(b);
    if (op[0] != '-' || !x || !y) return std::nullopt;
    if (op == "-eq") return *x == *y;
    if (op == "-ne") return *x != *y;
    if (op == "-lt") return *x < *y;
    if (op == "-le") return *x <= *y;
    if (op == "-gt") return *x > *y;
    if (op == "-ge") return *x >= *y;
    return std::nullopt;
  }

  std::span<const ShellOperand> operands_;
  const ShellVariables& variables_;
  std::size_t at_ = 0;
};

}  // namespace

std::optional<bool> shell_test(std::span<const ShellOperand> operands, const ShellVariables& variables) {
  return ShellTest(operands, variables).run();
}

std::optional<bool> shell_matches(const ShellOperand& text, const ShellOperand& pattern) {
  if (!text.known || !pattern.known) return std::nullopt;
  if (!pattern.pattern) return text.text == pattern.text;
  if (pattern.text.find_first_of("(|") != std::string::npos) return std::nullopt;  // extended patterns
  return fnmatch(pattern.text.c_str(), text.text.c_str(), 0) == 0;
}

}  // namespace sluice::imports
