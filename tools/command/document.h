#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "model/units.h"

// Values that are not known are null, and times are seconds.
template <typename Value>
struct nlohmann::adl_serializer<std::optional<Value>> {
  template <typename Json>
  static void to_json(Json& json, const std::optional<Value>& value) {
    json = value ? Json(*value) : Json(nullptr);
  }
};
template <>
struct nlohmann::adl_serializer<sluice::model::Duration> {
  template <typename Json>
  static void to_json(Json& json, const sluice::model::Duration& time) {
    json = sluice::model::to_seconds(time);
  }
};

namespace sluice::tools {

// The results of a command, from its schema on. The functions below write them as JSON, text and CSV.
using OrderedJson = nlohmann::ordered_json;

// Returns what --json prints: the schema of the document, the version of sluice, the scenario with its assumptions
// unless it is null, and the document's results.
std::string json_text(OrderedJson document, OrderedJson scenario = nullptr);

// Returns null for a value that is not known, which predictions have as 0.
inline OrderedJson known(double value) { return value > 0 ? OrderedJson(value) : OrderedJson(nullptr); }

// Returns an object with the members names[i] + suffix: values[i].
template <typename Names, typename Values>
OrderedJson named(const Names& names, const Values& values, std::string_view suffix = "") {
  OrderedJson out = OrderedJson::object();
  for (std::size_t i = 0; i < std::size(values); ++i) out[std::string(names[i]).append(suffix)] = values[i];
  return out;
}

// Returns `pattern` with values in place of {key:format}; {a/b} is the member b of the member a. An unknown value is
// "-"; parts in [brackets] are left out if one of their values is unknown. A format is a sign, a precision, and the
// unit of the value: t seconds, as "3.2 ms"; % a fraction, as "12.5 %"; p a difference of fractions, as "12.5 pts"; B
// bytes, as "2.25 GiB"; G bytes, in GiB; k grouped by thousands; otherwise a format of fmt.
std::string filled(std::string_view pattern, const OrderedJson& values);

// Returns a table with a heading and one line per element of a JSON array. `columns` are separated by '|', each
// heading=pattern; a cell is the pattern, as in `filled`. A column is as wide as its widest cell and its heading with
// its blanks, and right-aligned unless the heading starts with '<'; one that is empty in all rows is left out. Of more
// than `most` rows, the middle is omitted.
std::string table(std::string_view columns, const OrderedJson& rows, std::size_t most = SIZE_MAX);

// Returns a CSV table (RFC 4180) with one row per element of a JSON array. `keys` are separated by commas, each a key
// or heading=path. Booleans are 1 and 0, and unknown values are empty.
std::string csv(std::string_view keys, const OrderedJson& rows);

}  // namespace sluice::tools
