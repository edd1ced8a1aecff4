#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

// A table with a header, as in RFC 4180: a quoted cell may contain commas, line breaks and doubled quotes. Rows are
// numbered from 1 in messages, without the header.
class CsvTable {
 public:
  // Throws InputError "source: row R: ..." if a row has another number of cells than the header, a quote is not closed,
  // a column name occurs twice, or there is no header.
  CsvTable(std::string_view text, std::string source);

  const std::string& source() const { return source_; }
  const std::vector<std::string>& columns() const { return columns_; }
  int num_rows() const { return static_cast<int>(rows_.size()); }
  bool has(std::string_view column) const;
  // Removes a column, if there is one of this name. Returns whether there was one.
  bool drop(std::string_view column);

  // Returns a cell; rows are numbered from 0. Throws InputError if there is no such column, naming the nearest one.
  const std::string& text(int row, std::string_view column) const;
  // Returns a cell as a number, whole or finite. Throws InputError "source: row R, column C: rule, got value".
  double number(int row, std::string_view column, double low, double high) const;
  std::int64_t integer(int row, std::string_view column, std::int64_t low, std::int64_t high) const;

  // Returns "source: row R" for messages.
  std::string place(int row) const;
  [[noreturn]] void fail(int row, std::string_view column, const std::string& rule) const;

 private:
  std::size_t index(std::string_view column) const;

  std::string source_;
  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Throws InputError naming the file and the row.
CsvTable read_csv(const std::string& path);

}  // namespace sluice::model
