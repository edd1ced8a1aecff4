#include "import/shell_arithmetic.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <span>

namespace sluice::imports {
namespace {

constexpr int kMostParentheses = 50;

class ShellArithmetic {
 public:
  ShellArithmetic(std::string_view text, const ShellVariables& variables) : text_(text), variables_(variables) {}

  std::optional<std::int64_t> result() {
    const auto value = binary(0, 0);
    return value && next() == '\0' ? value : std::nullopt;
  }

 private:
  using Value = std::optional<std::int64_t>;

  char next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  static Value applied(std::string_view op, std::int64_t a, std::int64_t b) {
    std::int64_t out = 0;
    if (op == "+" && !__builtin_add_overflow(a, b, &out)) return out;
    if (op == "-" && !__builtin_sub_overflow(a, b, &out)) return out;
    if (op == "*" && !__builtin_mul_overflow(a, b, &out)) return out;
    if ((op == "/" || op == "%") && b > 0) return op == "/" ? a / b : a % b;
    if (op == "==") return a == b ? 1 : 0;
    if (op == "!=") return a != b ? 1 : 0;
    if (op == "<=") return a <= b ? 1 : 0;
    if (op == ">=") return a >= b ? 1 : 0;
    if (op == "<") return a < b ? 1 : 0;
    if (op == ">") return a > b ? 1 : 0;
    if (op == "&&") return a != 0 && b != 0 ? 1 : 0;
    if (op == "||") return a != 0 || b != 0 ? 1 : 0;
    return std::nullopt;
  }

  // Returns the operator here of a level, the weakest first; "" if there is none. Longer ones come first.
  std::string_view operator_of(std::size_t level) {
    constexpr std::array<std::string_view, 1> kOr = {"||"};
    constexpr std::array<std::string_view, 1> kAnd = {"&&"};
    constexpr std::array<std::string_view, 6> kCompare = {"==", "!=", "<=", ">=", "<", ">"};
    constexpr std::array<std::string_view, 2> kSum = {"+", "-"};
    constexpr std::array<std::string_view, 3> kProduct = {"*", "/", "%"};
    const std::array<std::span<const std::string_view>, 5> levels = {kOr, kAnd, kCompare, kSum, kProduct};
    next();
    for (const std::string_view op : levels[level]) {
      if (text_.substr(at_).starts_with(op)) return text_.substr(at_, op.size());
    }
    return "";
  }

  Value binary(std::size_t level, int depth) {
    constexpr std::size_t kLevels = 5;
    if (level == kLevels) return operand(depth);
    Value value = binary(level + 1, depth);
    while (value) {
      const std::string_view op = operator_of(level);
      if (op.empty()) break;
      at_ += op.size();
      const Value other = binary(level + 1, depth);
      value = other ? applied(op, *value, *other) : std::nullopt;
    }
    return value;
  }

  Value operand(int depth) {
    if (depth > kMostParentheses) return std::nullopt;
    if (next() == '$' && text_.substr(at_).starts_with("$(")) ++at_;
    if (next() == '(') {
      ++at_;
      const Value value = binary(0, depth + 1);
      if (!value || next() != ')') return std::nullopt;
      ++at_;
      return value;
    }
    if (next() == '!' || next() == '-') {
      const char op = text_[at_++];
      const Value value = operand(depth + 1);
      if (!value) return std::nullopt;
      return op == '!' ? Value(*value == 0 ? 1 : 0) : applied("-", 0, *value);
    }
    return number();
  }

  // A number or a variable: N, $N or ${N}.
  Value number() {
    if (next() == '$') ++at_;
    const bool brace = at_ < text_.size() && text_[at_] == '{';
    if (brace) ++at_;
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_')) {
      ++at_;
    }
    std::string_view word = text_.substr(begin, at_ - begin);
    if (brace && (at_ >= text_.size() || text_[at_++] != '}')) return std::nullopt;
    const bool name = !word.empty() && std::isdigit(static_cast<unsigned char>(word.front())) == 0;
    if (name) {
      const auto found = variables_.find(std::string(word));
      if (found == variables_.end() || !found->second.known || found->second.values.empty()) return std::nullopt;
      word = found->second.values.front();
    }
    // A leading 0 would mean base 8.
    if (word.size() > 1 && word.front() == '0') return std::nullopt;
    std::int64_t value = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || rest != word.data() + word.size()) return std::nullopt;
    return value;
  }

  std::string_view text_;
  const ShellVariables& variables_;
  std::size_t at_ = 0;
};

}  // namespace

std::optional<std::int64_t> shell_arithmetic(std::string_view text, const ShellVariables& variables) {
  return ShellArithmetic(text, variables).result();
}

}  // namespace sluice::imports
