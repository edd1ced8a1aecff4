#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>

#include "model/input/csv.h"

namespace sluice::sim {

// Constants are fitted to at least this number of rows.
inline constexpr std::size_t kFewestRows = 6;

// Whether the table has all of `columns`.
inline bool has_all(const CsvTable& table, std::initializer_list<std::string_view> columns) {
  return std::all_of(columns.begin(), columns.end(), [&](std::string_view column) { return table.has(column); });
}

// The column `source` of a row, or the name of the table's file.
inline std::string origin_of(const CsvTable& table, int row) {
  return table.has("source") ? table.text(row, "source") : std::filesystem::path(table.source()).filename().string();
}

}  // namespace sluice::sim
