#include "import/toml.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <sstream>
#include <vector>

#include "model/errors.h"

namespace sluice::imports {
namespace {
struct TomlAssertion {};
[[noreturn]] void throw_toml_assertion() { throw TomlAssertion(); }
}  // namespace
}  // namespace sluice::imports

// toml++ is compiled into this file, so that users of the libraries do not need it. Its parser asserts what some
// malformed files violate: they are errors in all builds.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_HEADER_ONLY 1
#define TOML_MAX_NESTED_VALUES 30
#define TOML_ASSERT(expr) (static_cast<bool>(expr) ? static_cast<void>(0) : ::sluice::imports::throw_toml_assertion())
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

namespace sluice::imports {
namespace {

constexpr std::ptrdiff_t kMostTomlDots = 200;  // of a line; toml++ recurses into each part of a key

std::int64_t line_of_node(const toml::node& node) { return static_cast<std::int64_t>(node.source().begin.line); }

// Returns a key as TOML requires it to be written.
std::string written_key(std::string_view key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
  });
  return bare ? std::string(key) : fmt::format("\"{}\"", key);
}

nlohmann::json json_of(const toml::node& node) {
  if (const auto* array = node.as_array()) {
    nlohmann::json out = nlohmann::json::array();
    for (const toml::node& each : *array) out.push_back(json_of(each));
    return out;
  }
  if (const auto* table = node.as_table()) {
    nlohmann::json out = nlohmann::json::object();
    for (const auto& [key, value] : *table) out[std::string(key.str())] = json_of(value);
    return out;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* whole = node.as_integer()) return whole->get();
  if (const auto* yes = node.as_boolean()) return yes->get();
  if (const auto* real = node.as_floating_point(); real != nullptr && std::isfinite(real->get())) return real->get();
  std::ostringstream text;  // dates, times, inf and nan
  text << toml::node_view(node);
  return text.str();
}

void add_table(const toml::table& table, const std::string& prefix, TomlFile& out) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + written_key(key.str());
    if (const toml::table* inner = node.as_table()) {
      add_table(*inner, name + ".", out);
    } else {
      out[name] = {json_of(node), line_of_node(node)};
    }
  }
}

void check_dots(std::string_view text, const std::string& source) {
  for (std::int64_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '.') > kMostTomlDots) {
      throw InputError(fmt::format("{}: line {}: expected at most {} dots", source, line, kMostTomlDots));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// Returns the first line with which the parser fails an assertion.
std::int64_t asserting_line(std::string_view text) {
  std::vector<std::size_t> ends;  // of the lines
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\n' || at + 1 == text.size()) ends.push_back(at + 1);
  }
  const auto fails = [&](std::size_t end) {
    try {
      static_cast<void>(toml::parse(text.substr(0, end)));
    } catch (const toml::parse_error&) {
      return false;
    } catch (const TomlAssertion&) {
      return true;
    }
    return false;
  };
  const auto line = std::partition_point(ends.begin(), ends.end(), [&](std::size_t end) { return !fails(end); });
  return line - ends.begin() + 1;
}

}  // namespace

TomlFile read_toml(std::string_view text, const std::string& source) {
  check_dots(text, source);
  TomlFile out;
  try {
    add_table(toml::parse(text), "", out);
  } catch (const toml::parse_error& error) {
    std::string what(error.description());
    what.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(what.front())));
    throw InputError(fmt::format("{}: line {}: {}", source, error.source().begin.line, what));
  } catch (const TomlAssertion&) {
    throw InputError(fmt::format("{}: line {}: expected TOML", source, asserting_line(text)));
  }
  return out;
}

}  // namespace sluice::imports
