#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "import/megatron.h"
#include "model/errors.h"

namespace sluice::imports {

// The arguments of Megatron-LM by name, and their values. Errors are InputErrors that name the source and the place.
class MegatronValues {
 protected:
  static constexpr std::int64_t kMostNumber = std::int64_t{1} << 40;

  template <typename Number>
  static std::optional<Number> megatron_number(const std::string& text) {
    Number value{};
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
    return value;
  }

  explicit MegatronValues(std::string source) : source_(std::move(source)) {}

  [[noreturn]] void fail(std::string_view name, const std::string& what) const {
    const auto found = arguments_.find(std::string(name));
    throw InputError(fmt::format(
        "{}: {}: {}", source_, found == arguments_.end() ? fmt::format("--{}", name) : place_of(found->second), what));
  }

  // Returns "line 3: --num-layers", or the key of another file.
  static std::string place_of(const MegatronArgument& argument) {
    const std::string name = argument.key.empty() ? "--" + argument.name : argument.key;
    return argument.line > 0 ? fmt::format("line {}: {}", argument.line, name) : name;
  }

  bool has(std::string_view name) const { return arguments_.contains(std::string(name)); }

  // The word of an argument; "" if it is not given.
  std::string word(std::string_view name) const {
    const auto found = arguments_.find(std::string(name));
    if (found == arguments_.end()) return "";
    if (found->second.words.empty()) fail(name, "expected a value");
    return found->second.words.front();
  }

  std::optional<std::int64_t> whole(std::string_view name) const {
    if (!has(name)) return std::nullopt;
    const std::string text = word(name);
    const auto value = megatron_number<std::int64_t>(text);
    if (!value || *value < -kMostNumber || *value > kMostNumber) {
      fail(name, fmt::format("expected a whole number, got '{}'", text));
    }
    return value;
  }

  std::optional<std::int64_t> positive(std::string_view name) const {
    const auto value = whole(name);
    if (value && *value < 1) fail(name, fmt::format("expected a positive number, got {}", *value));
    return value;
  }

  std::optional<double> real(std::string_view name) const {
    if (!has(name)) return std::nullopt;
    const std::string text = word(name);
    const auto value = megatron_number<double>(text);
    if (!value || !std::isfinite(*value)) fail(name, fmt::format("expected a number, got '{}'", text));
    return value;
  }

  std::string source_;
  std::map<std::string, MegatronArgument> arguments_;
};

}  // namespace sluice::imports
