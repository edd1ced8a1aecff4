#include "model/scenario/automatic.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <utility>

#include "model/errors.h"

namespace sluice::model {

MemoryCap parse_memory_cap(const std::string& text, const std::string& place) {
  const auto refuse = [&] {
    throw InputError(
        fmt::format("{}: expected bytes with a unit, as in 60GiB, or microbatches, as in 3mb, got '{}'", place, text));
  };
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !(value > 0 && value <= 1e15)) refuse();
  const std::string_view unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  if (unit == "mb") {
    if (value > 1e6) refuse();
    return {.bytes = {}, .microbatches = value};
  }
  for (const auto& [name, bytes] : {std::pair("B", 1.0),
                                    {"kB", 1e3},
                                    {"MB", 1e6},
                                    {"GB", 1e9},
                                    {"TB", 1e12},
                                    {"KiB", 0x1p10},
                                    {"MiB", 0x1p20},
                                    {"GiB", 0x1p30},
                                    {"TiB", 0x1p40}}) {
    if (unit == name && value * bytes <= 1e17)
      return {.bytes = static_cast<std::int64_t>(value * bytes), .microbatches = {}};
  }
  refuse();
  return {};
}

}  // namespace sluice::model
