#include "model/scenario/settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/scenario/scenario.h"

namespace sluice::model {
namespace {

// "10", "0.001", "1000000".
std::string number_text(double number) { return fmt::format("{:.15g}", number); }

// Reads a value of a row's kind into its place; without one, checks the value.
void read_value(const Setting& row, const JsonReader& value, const SettingPlace& place) {
  const auto low = static_cast<std::int64_t>(row.low);
  const auto high = static_cast<std::int64_t>(row.high);
  switch (row.kind) {
    case SettingKind::whole: {
      const std::int64_t number = value.integer(low, high);
      if (auto* const* to = std::get_if<int*>(&place)) **to = static_cast<int>(number);
      if (auto* const* to = std::get_if<std::int64_t*>(&place)) **to = number;
      return;
    }
    case SettingKind::real: {
      const double number = value.number(row.low, row.high);
      if (auto* const* to = std::get_if<double*>(&place)) **to = number;
      return;
    }
    case SettingKind::yes: {
      const bool yes = value.boolean();
      if (auto* const* to = std::get_if<bool*>(&place)) **to = yes;
      if (auto* const* to = std::get_if<std::optional<bool>*>(&place)) **to = yes;
      return;
    }
    case SettingKind::word: {
      const std::vector<std::string> words = split_words(row.words);
      const auto found = std::find(words.begin(), words.end(), value.one_of(words));
      if (const auto* to = std::get_if<WordPlace>(&place)) to->set(to->member, static_cast<int>(found - words.begin()));
      return;
    }
    case SettingKind::wholes: {
      std::vector<int> numbers;
      if (value.json().is_array()) {  // else special code accepts or rejects it
        for (const JsonReader& each : value.elements()) numbers.push_back(static_cast<int>(each.integer(low, high)));
      }
      if (auto* const* to = std::get_if<std::vector<int>*>(&place)) **to = std::move(numbers);
      return;
    }
    case SettingKind::words:
      for (const JsonReader& each : value.elements()) static_cast<void>(each.one_of(split_words(row.words)));
      return;
    case SettingKind::text: static_cast<void>(value.string()); return;
    case SettingKind::name:
    case SettingKind::path:
    case SettingKind::reals:
    case SettingKind::other: return;  // special code reads them
  }
}

}  // namespace

std::vector<std::string> split_words(std::string_view list) {
  std::vector<std::string> out;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    out.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return out;
}

std::string Setting::range() const {
  return has_range() ? fmt::format("{} to {}", number_text(low), number_text(high)) : "";
}

std::string Setting::fallback_text() const {
  if (fallback == "false") return "off";
  if (fallback == "true") return "on";
  return std::string(fallback.starts_with('"') ? fallback.substr(1, fallback.size() - 2) : fallback);
}

std::string Setting::full_help() const {
  std::string out(help);
  if (const std::size_t at = out.find("{}"); at != std::string::npos) out.replace(at, 2, range());
  if (fallback.empty()) return out;
  const std::string value = fallback_text();
  const bool number = value.find_first_not_of("0123456789.") == std::string::npos;
  const char* const lead = value.starts_with("required") ? "" : number ? "default " : "default: ";
  return fmt::format("{} ({}{})", out, lead, value);
}

const Setting* find_setting(std::string_view pointer) {
  const auto rows = settings();
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const Setting& row) { return row.pointer == pointer; });
  return found == rows.end() ? nullptr : &*found;
}

const Setting* find_setting_of_flag(std::string_view flag) {
  if (flag.starts_with("--")) flag.remove_prefix(2);
  for (const Setting& row : settings()) {
    for (const std::string& name : split_words(row.flags)) {
      if (std::string_view(name).substr(2) == flag) return &row;
    }
  }
  return nullptr;
}

void read_settings(std::string_view section, JsonReader& object, Scenario& scenario) {
  for (const Setting& row : settings()) {
    if (!row.pointer.starts_with(section) || row.pointer.size() != section.size() + 1 + row.key().size()) continue;
    const std::string key(row.key());
    object.allow(key);
    if (object.has(key)) read_value(row, object.at(key), row.place == nullptr ? SettingPlace() : row.place(scenario));
  }
}

}  // namespace sluice::model
