#include "model/input/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "model/input/nearest.h"
#include "model/input/printable.h"
#include "model/input/yaml_text.h"

namespace sluice::model {
namespace {

std::string place_of(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte > 0 ? byte - 1 : 0, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t last = before.rfind('\n');
  const std::size_t column = before.size() - (last == std::string_view::npos ? 0 : last + 1) + 1;
  return fmt::format("line {}, column {}", line, column);
}

std::string shown(const Json& value) {
  // JSON has no spelling for NaN and infinity, which flags can have.
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return fmt::format("{}", value.get<double>());
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

std::string escaped(const std::string& key) {
  std::string out;
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& source) {
  constexpr int kMaxDepth = 100;
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) throw InputError(fmt::format("{}: nested deeper than {}", source, kMaxDepth));
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (has_control_characters(key)) {
        throw InputError(fmt::format("{}: key \"{}\" has control characters", source, printable(key)));
      }
      if (!keys.back().insert(key).second) {
        throw InputError(fmt::format("{}: key {} occurs twice in one object", source, shown(value)));
      }
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::parse_error& error) {
    if (looks_like_yaml(text, source)) throw InputError(fmt::format("{}: expected JSON, got YAML", source));
    std::string what = error.what();  // "[json.exception.parse_error.101] parse error at line .., column ..: why"
    const std::size_t why = what.find(": ");
    what = why == std::string::npos ? what : what.substr(why + 2);
    throw InputError(fmt::format("{}: {}: not JSON: {}", source, place_of(text, error.byte), printable(what)));
  } catch (const Json::out_of_range& error) {
    throw InputError(fmt::format("{}: not JSON: a number is out of range", source));
  }
}

JsonReader::JsonReader(const Json& value, std::string source, std::string pointer)
    : value_(&value), source_(std::move(source)), pointer_(std::move(pointer)) {}

void JsonReader::fail(const std::string& rule, const std::string& hint) const {
  throw InputError(
      fmt::format("{}: {}: {}, got {}{}", source_, pointer_.empty() ? "/" : pointer_, rule, shown(*value_), hint));
}

JsonReader JsonReader::child(const std::string& key, const Json& value) const {
  return JsonReader(value, source_, pointer_ + "/" + escaped(key));
}

const Json* JsonReader::member(const std::string& key) {
  if (!value_->is_object()) fail("expected an object");
  asked_.push_back(key);
  const auto found = value_->find(key);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

const Json& JsonReader::required(const std::string& key) {
  const Json* found = member(key);
  if (found == nullptr) {
    throw InputError(fmt::format("{}: {}/{}: required key is missing", source_, pointer_, escaped(key)));
  }
  return *found;
}

bool JsonReader::has(std::string_view key) const {
  if (!value_->is_object()) return false;
  const auto found = value_->find(std::string(key));
  return found != value_->end() && !found->is_null();
}

JsonReader JsonReader::at(const std::string& key) { return child(key, required(key)); }

JsonReader JsonReader::element(std::size_t index) const {
  return JsonReader((*value_)[index], source_, fmt::format("{}/{}", pointer_, index));
}

std::vector<JsonReader> JsonReader::elements() const {
  if (!value_->is_array()) fail("expected an array");
  std::vector<JsonReader> out;
  out.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) out.push_back(element(i));
  return out;
}

std::int64_t JsonReader::integer(std::int64_t low, std::int64_t high) const {
  const std::string rule = fmt::format("expected a whole number from {} to {}", low, high);
  std::int64_t n = 0;
  if (value_->is_number_unsigned()) {
    const auto u = value_->get<std::uint64_t>();
    if (u > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) fail(rule);
    n = static_cast<std::int64_t>(u);
  } else if (value_->is_number_integer()) {
    n = value_->get<std::int64_t>();
  } else {
    fail(rule);
  }
  if (n < low || n > high) fail(rule);
  return n;
}

double JsonReader::number(double low, double high) const {
  const std::string rule = fmt::format("expected a number from {} to {}", low, high);
  if (!value_->is_number()) fail(rule);
  const double x = value_->get<double>();
  if (!(x >= low && x <= high)) fail(rule);
  return x;
}

bool JsonReader::boolean() const {
  if (!value_->is_boolean()) fail("expected true or false");
  return value_->get<bool>();
}

std::string JsonReader::string() const {
  if (!value_->is_string()) fail("expected a string");
  const auto& text = value_->get_ref<const std::string&>();
  if (has_control_characters(text)) fail("expected a string without control characters");
  return text;
}

std::string JsonReader::one_of(std::span<const std::string> words) const {
  std::string word = string();
  if (std::find(words.begin(), words.end(), word) == words.end()) {
    fail(fmt::format("expected one of {}", fmt::join(words, ", ")), did_you_mean(word, words));
  }
  return word;
}

std::int64_t JsonReader::integer(const std::string& key, std::int64_t low, std::int64_t high) {
  return child(key, required(key)).integer(low, high);
}

std::int64_t JsonReader::integer_or(const std::string& key, std::int64_t low, std::int64_t high,
                                    std::int64_t fallback) {
  const Json* found = member(key);
  return found == nullptr ? fallback : child(key, *found).integer(low, high);
}

double JsonReader::number(const std::string& key, double low, double high) {
  return child(key, required(key)).number(low, high);
}

double JsonReader::number_or(const std::string& key, double low, double high, double fallback) {
  const Json* found = member(key);
  return found == nullptr ? fallback : child(key, *found).number(low, high);
}

bool JsonReader::boolean_or(const std::string& key, bool fallback) {
  const Json* found = member(key);
  return found == nullptr ? fallback : child(key, *found).boolean();
}

std::string JsonReader::string(const std::string& key) { return child(key, required(key)).string(); }

std::string JsonReader::string_or(const std::string& key, const std::string& fallback) {
  const Json* found = member(key);
  return found == nullptr ? fallback : child(key, *found).string();
}

void JsonReader::finish() const {
  if (!value_->is_object()) fail("expected an object");
  for (const auto& [key, value] : value_->items()) {
    if (std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
    throw InputError(
        fmt::format("{}: {}/{}: unknown key{}", source_, pointer_, escaped(key), did_you_mean(key, asked_)));
  }
}

}  // namespace sluice::model
