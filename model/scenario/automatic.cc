#include "model/scenario/automatic.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "model/errors.h"
#include "model/input/numbers.h"

namespace sluice::model {
namespace {

// Splits "60GiB" in 60 and "GiB". Returns nothing unless it begins with a number from 0 to 1e15.
std::optional<std::pair<double, std::string_view>> value_and_unit(const std::string& text) {
  const LeadingNumber number = leading_number(text);
  if (!number.found || !(number.value >= 0 && number.value <= 1e15)) return {};
  return std::pair(number.value, number.rest);
}

std::optional<std::int64_t> bytes_in(double value, std::string_view unit) {
  for (const auto& [name, bytes] : {std::pair("B", 1.0),
                                    {"kB", 1e3},
                                    {"MB", 1e6},
                                    {"GB", 1e9},
                                    {"TB", 1e12},
                                    {"KiB", 0x1p10},
                                    {"MiB", 0x1p20},
                                    {"GiB", 0x1p30},
                                    {"TiB", 0x1p40}}) {
    if (unit == name && value * bytes <= 1e17) return static_cast<std::int64_t>(value * bytes);
  }
  return {};
}

}  // namespace

std::int64_t parse_bytes(const std::string& text, const std::string& place) {
  const auto split = value_and_unit(text);
  const auto bytes = split ? bytes_in(split->first, split->second) : std::nullopt;
  if (!bytes) {
    throw InputError(fmt::format("{}: expected bytes with a unit, as in 512MiB, got '{}'", place, text));
  }
  return *bytes;
}

MemoryCap parse_memory_cap(const std::string& text, const std::string& place) {
  const auto split = value_and_unit(text);
  const auto [value, unit] = split.value_or(std::pair(0.0, std::string_view()));
  if (value > 0 && value <= 1e6 && unit == "mb") return {.bytes = {}, .microbatches = value};
  const auto bytes = bytes_in(value, unit);
  if (value > 0 && bytes) return {.bytes = bytes, .microbatches = {}};
  throw InputError(
      fmt::format("{}: expected bytes with a unit, as in 60GiB, or microbatches, as in 3mb, got '{}'", place, text));
}

}  // namespace sluice::model
