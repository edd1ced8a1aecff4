#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/errors.h"

namespace sluice::model {

using Json = nlohmann::json;

// Parses `text`. Throws InputError "source: line L, column C: ..." on a syntax error, a repeated key, or
// nesting deeper than 100.
Json parse_json(std::string_view text, const std::string& source);

// Reads a JSON value and knows its location: every error is `source: /json/pointer: rule, got value`. An object must be
// closed with `finish`, which rejects the keys that were not read.
class JsonReader {
 public:
  JsonReader(const Json& value, std::string source, std::string pointer = "");

  const Json& json() const { return *value_; }
  const std::string& source() const { return source_; }
  const std::string& pointer() const { return pointer_; }

  bool has(std::string_view key) const;         // present and not null
  JsonReader at(const std::string& key);        // required member
  JsonReader element(std::size_t index) const;  // of an array
  std::vector<JsonReader> elements() const;     // of an array; throws if it is none

  // The value itself, checked.
  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  double number(double low, double high) const;  // finite, low <= x <= high
  bool boolean() const;
  std::string string() const;
  std::string one_of(std::span<const std::string> words) const;

  // Members of an object: required ones throw when missing; the others give `fallback` when missing or null.
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high);
  std::int64_t integer_or(const std::string& key, std::int64_t low, std::int64_t high, std::int64_t fallback);
  double number(const std::string& key, double low, double high);
  double number_or(const std::string& key, double low, double high, double fallback);
  bool boolean_or(const std::string& key, bool fallback);
  std::string string(const std::string& key);
  std::string string_or(const std::string& key, const std::string& fallback);

  // Marks a key as known without reading it.
  void allow(const std::string& key) { asked_.push_back(key); }
  // Throws if the object has a key that was not read, naming the nearest known one.
  void finish() const;

  // Throws InputError "source: pointer: rule, got value".
  // `hint` follows the value, such as did_you_mean.
  [[noreturn]] void fail(const std::string& rule, const std::string& hint = "") const;

 private:
  const Json* member(const std::string& key);  // null if missing or null
  const Json& required(const std::string& key);
  JsonReader child(const std::string& key, const Json& value) const;

  const Json* value_;
  std::string source_;
  std::string pointer_;
  std::vector<std::string> asked_;
};

}  // namespace sluice::model
