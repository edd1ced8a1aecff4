#include "tools/command/number_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string>
#include <string_view>

namespace sluice::tools {
namespace {

// Returns the number at the front of `text` and removes it; NaN if there is none.
double eat_number(std::string_view& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nan("");
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

}  // namespace

CLI::Validator number_from(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) {
        std::string_view rest = text;
        if (rest.starts_with('+')) rest.remove_prefix(1);
        const double value = eat_number(rest);
        if (rest.empty() && std::isfinite(value) && value >= low && value <= high) return std::string();
        const bool limited = std::isfinite(high);
        return fmt::format("expected a number {}, got '{}'",
                           limited ? fmt::format("from {} to {}", low, high) : fmt::format("of at least {}", low),
                           text);
      },
      "");
}

CLI::Validator fraction(double most) {
  return CLI::Validator(
      [most](std::string& text) {
        std::string_view rest = text;
        const double value = eat_number(rest);
        while (rest.starts_with(' ')) rest.remove_prefix(1);
        const bool percent = rest == "%";
        if (!std::isfinite(value) || value < 0 || !(rest.empty() || percent)) {
          return fmt::format("expected a percentage such as 10% or a fraction such as 0.1, got '{}'", text);
        }
        if (!percent && value >= 1) {  // 1 may mean 1% or all
          return fmt::format("expected a percentage such as 10% or a fraction such as 0.1, got '{}': write {}%{}", text,
                             value,
                             value > 100  ? ""
                             : value == 1 ? " or 100%"
                                          : fmt::format(" or {}", value / 100));
        }
        const double as_fraction = percent ? value / 100 : value;
        if (as_fraction > most) return fmt::format("expected at most {}%, got '{}'", 100 * most, text);
        text = fmt::format("{}", as_fraction);
        return std::string();
      },
      "");
}

}  // namespace sluice::tools
