#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::imports {

// The values of a TOML file by "table.key", also those of dotted keys and inline tables, each with its line, from 1.
struct TomlValue {
  nlohmann::json value;
  std::int64_t line = 0;
};
using TomlFile = std::map<std::string, TomlValue>;

// Reads a TOML file with toml++. Arrays of tables are values; dates, times, inf and nan are strings. Throws InputError
// naming the line.
TomlFile read_toml(std::string_view text, const std::string& source);

}  // namespace sluice::imports
