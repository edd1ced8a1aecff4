#include "tools/command/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

// Returns the number of characters of UTF-8 text.
std::size_t num_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

std::string padded(std::string text, std::size_t width, bool left) {
  const std::size_t has = num_characters(text);
  if (has < width) text.insert(left ? text.size() : 0, width - has, ' ');
  return text;
}

// Returns the value at a path, or null.
const OrderedJson& value_at(const OrderedJson& values, std::string_view path) {
  static const OrderedJson kUnknown;
  const OrderedJson* at = &values;
  while (!path.empty()) {
    const std::size_t slash = std::min(path.find('/'), path.size());
    const std::string key(path.substr(0, slash));
    if (at->is_array()) {
      at = &at->at(std::stoul(key));
    } else {
      const auto found = at->find(key);
      if (found == at->end()) return kUnknown;
      at = &*found;
    }
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return *at;
}

std::string bytes_text(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  std::size_t unit = 0;
  auto value = static_cast<double>(bytes) / 1024;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

// Returns a value; `format` as in `filled`.
std::string text_of(const OrderedJson& value, std::string_view format) {
  if (value.is_null()) return "-";
  const char unit = format.empty() ? '\0' : format.back();
  const auto number = [&](double scale) {
    return fmt::format(fmt::runtime(fmt::format("{{:{}f}}", format.substr(0, format.size() - 1))),
                       scale * value.get<double>());
  };
  const auto with = [&](const auto& plain) { return fmt::format(fmt::runtime(fmt::format("{{:{}}}", format)), plain); };
  switch (unit) {
    case 't': {
      const Duration time(std::llround(1e9 * value.get<double>()));
      const bool sign = time > Duration::zero() && format.front() == '+';
      return (time < Duration::zero() ? "-" : sign ? "+" : "") + time_text(std::chrono::abs(time));
    }
    case 'k': return grouped(value.get<double>());
    case '%': return number(100) + " %";
    case 'G': return number(1 / kGiB);
    case 'p': return number(100) + " pts";
    case 'B': return bytes_text(value.get<std::int64_t>());
    default: break;
  }
  if (value.is_string()) return with(value.get_ref<const std::string&>());
  return value.is_number_integer() && unit == '\0' ? with(value.get<std::int64_t>()) : with(value.get<double>());
}

std::string csv_cell(const OrderedJson& value) {
  if (value.is_null()) return "";
  if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
  if (!value.is_string()) return value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
  const auto& text = value.get_ref<const std::string&>();
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + '"';
}

// Splits "heading=pattern|..." at `separator`; without '=', the pattern is the heading.
std::vector<std::pair<std::string_view, std::string_view>> columns_of(std::string_view text, char separator) {
  std::vector<std::pair<std::string_view, std::string_view>> out;
  while (!text.empty()) {
    const std::string_view column = text.substr(0, text.find(separator));
    const std::size_t equals = column.find('=');
    out.emplace_back(column.substr(0, equals), column.substr(equals + 1));  // npos + 1 is 0
    text.remove_prefix(std::min(column.size() + 1, text.size()));
  }
  return out;
}

}  // namespace

std::string json_text(OrderedJson document, OrderedJson scenario) {
  OrderedJson out = {{"schema", document.at("schema")}, {"sluice", SLUICE_VERSION}};
  if (!scenario.is_null()) out["scenario"] = std::move(scenario);
  for (auto& [key, value] : document.get_ref<OrderedJson::object_t&>()) {
    if (key != "schema") out[key] = std::move(value);
  }
  return out.dump(2) + "\n";
}

std::string filled(std::string_view pattern, const OrderedJson& values) {
  std::string out;
  std::size_t part = std::string::npos;  // where a part in brackets begins in `out`
  bool unknown = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '[') {
      part = out.size();
      unknown = false;
    } else if (pattern[i] == ']') {
      if (unknown) out.resize(part);
    } else if (pattern[i] == '{') {
      const std::string_view inside = pattern.substr(i + 1, pattern.find('}', i) - i - 1);
      const std::size_t colon = std::min(inside.find(':'), inside.size());
      const OrderedJson& value = value_at(values, inside.substr(0, colon));
      unknown |= value.is_null();
      out += text_of(value, inside.substr(std::min(colon + 1, inside.size())));
      i += inside.size() + 1;
    } else {
      out += pattern[i];
    }
  }
  return out;
}

std::string table(std::string_view columns, const OrderedJson& rows, std::size_t most) {
  std::vector<std::string> lines(rows.size() + 1);  // the first has the headings
  for (const auto& [heading, pattern] : columns_of(columns, '|')) {
    const bool left = heading.starts_with('<');
    std::vector<std::string> cells = {std::string(heading.substr(left ? 1 : 0))};
    std::size_t width = num_characters(cells[0]);
    for (const OrderedJson& row : rows) {
      width = std::max(width, num_characters(cells.emplace_back(filled(pattern, row))));
    }
    if (std::all_of(cells.begin() + 1, cells.end(), [](const std::string& cell) { return cell.empty(); })) continue;
    for (std::size_t i = 0; i < cells.size(); ++i) lines[i] += "  " + padded(std::move(cells[i]), width, left);
  }
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (rows.size() > most && i == most / 2 + 1) {
      i = lines.size() - most / 2;
      out += fmt::format("  ... ({} omitted; see --json)\n", rows.size() - most);
    }
    out += lines[i].substr(0, lines[i].find_last_not_of(' ') + 1) + '\n';
  }
  return out;
}

std::string csv(std::string_view keys, const OrderedJson& rows) {
  const auto columns = columns_of(keys, ',');
  std::string out;
  for (const auto& [heading, path] : columns) out += csv_cell(heading) + ',';
  for (const OrderedJson& row : rows) {
    out.back() = '\n';
    for (const auto& [heading, path] : columns) out += csv_cell(value_at(row, path)) + ',';
  }
  out.back() = '\n';
  return out;
}

}  // namespace sluice::tools
