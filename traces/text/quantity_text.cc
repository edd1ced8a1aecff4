#include "traces/text/quantity_text.h"

#include <fmt/format.h>

namespace sluice::traces {

std::string time_text(Duration duration) {
  const double seconds = to_seconds(duration);
  if (duration.count() == 0) return "0";
  if (seconds >= 1e4) return grouped(seconds) + " s";
  if (seconds >= 1) return fmt::format("{:.4g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.4g} ms", seconds * 1e3);
  return fmt::format("{:.4g} µs", seconds * 1e6);
}

std::string counted(std::int64_t number, std::string_view what, std::string_view plural) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : plural);
}

std::string grouped(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (std::ptrdiff_t i = std::ssize(digits) - 3; i > 0; i -= 3) digits.insert(static_cast<std::size_t>(i), 1, ' ');
  return digits;
}

}  // namespace sluice::traces
