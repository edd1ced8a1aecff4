#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// The values of a TOML file by "table.key", each with its line, from 1.
struct TomlValue {
  nlohmann::json value;
  std::int64_t line = 0;
};
using TomlFile = std::map<std::string, TomlValue>;

// Reads tables, strings, numbers, booleans and arrays of them. Throws InputError naming the line for other text, also
// for the parts of TOML that configurations of training frameworks do not use: inline tables, arrays of tables, dates,
// strings of several lines and quoted or dotted keys.
TomlFile read_toml(std::string_view text, const std::string& source);

}  // namespace sluice::model
