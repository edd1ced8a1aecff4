#include "model/input/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/nearest.h"
#include "model/input/numbers.h"
#include "model/input/printable.h"

namespace sluice::model {
namespace {

// Splits a table into rows of cells.
class Cutter {
 public:
  Cutter(std::string_view text, const std::string& source) : text_(text), source_(source) {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  }

  std::vector<std::vector<std::string>> run() {
    std::vector<std::vector<std::string>> rows;
    while (at_ < text_.size()) {
      std::vector<std::string> row = next_row(rows.size());
      const bool blank = row.size() == 1 && row[0].empty();
      if (!blank) rows.push_back(std::move(row));
    }
    return rows;
  }

 private:
  std::vector<std::string> next_row(std::size_t number) {
    std::vector<std::string> row;
    while (true) {
      row.push_back(next_cell(number));
      if (has_control_characters(row.back())) {
        fail(number, fmt::format("'{}' has control characters", printable(row.back())));
      }
      if (at_ == text_.size()) return row;
      const char end = text_[at_++];
      if (end == ',') continue;
      if (end == '\r' && at_ < text_.size() && text_[at_] == '\n') ++at_;
      return row;
    }
  }

  // Stops at the comma, the end of the line or the end of the text.
  std::string next_cell(std::size_t row) {
    std::string cell;
    if (at_ == text_.size() || text_[at_] != '"') {
      const std::size_t end = std::min(text_.find_first_of(",\r\n", at_), text_.size());
      cell = text_.substr(at_, end - at_);
      at_ = end;
      return cell;
    }
    ++at_;
    while (true) {
      const std::size_t quote = text_.find('"', at_);
      if (quote == std::string_view::npos) fail(row, "a quote is not closed");
      cell += text_.substr(at_, quote - at_);
      at_ = quote + 1;
      if (at_ == text_.size() || text_[at_] != '"') break;
      cell += '"';
      ++at_;
    }
    if (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\r' && text_[at_] != '\n') {
      fail(row, "expected a comma or the end of the line after a quote");
    }
    return cell;
  }

  [[noreturn]] void fail(std::size_t row, std::string_view what) const {
    throw InputError(fmt::format("{}: {}: {}", source_, row == 0 ? "header" : fmt::format("row {}", row), what));
  }

  std::string_view text_;
  const std::string& source_;
  std::size_t at_ = 0;
};

}  // namespace

CsvTable::CsvTable(std::string_view text, std::string source) : source_(std::move(source)) {
  rows_ = Cutter(text, source_).run();
  if (rows_.empty()) throw InputError(source_ + ": expected a header and rows, got nothing");
  columns_ = std::move(rows_.front());
  rows_.erase(rows_.begin());
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (std::find(columns_.begin(), columns_.begin() + static_cast<std::ptrdiff_t>(i), columns_[i]) !=
        columns_.begin() + static_cast<std::ptrdiff_t>(i)) {
      throw InputError(fmt::format("{}: header: column '{}' is there twice", source_, columns_[i]));
    }
  }
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row].size() == columns_.size()) continue;
    throw InputError(fmt::format("{}: row {}: expected {} cells, as the header has, got {}", source_, row + 1,
                                 columns_.size(), rows_[row].size()));
  }
}

bool CsvTable::has(std::string_view column) const {
  return std::find(columns_.begin(), columns_.end(), column) != columns_.end();
}

bool CsvTable::drop(std::string_view column) {
  if (!has(column)) return false;
  const auto at = static_cast<std::ptrdiff_t>(index(column));
  columns_.erase(columns_.begin() + at);
  for (std::vector<std::string>& row : rows_) row.erase(row.begin() + at);
  return true;
}

std::size_t CsvTable::index(std::string_view column) const {
  const auto found = std::find(columns_.begin(), columns_.end(), column);
  if (found == columns_.end()) {
    throw InputError(fmt::format("{}: header: expected a column '{}'{}", source_, column,
                                 did_you_mean(std::string(column), columns_)));
  }
  return static_cast<std::size_t>(found - columns_.begin());
}

const std::string& CsvTable::text(int row, std::string_view column) const { return rows_[row][index(column)]; }

double CsvTable::number(int row, std::string_view column, double low, double high) const {
  const std::string& cell = text(row, column);
  double value = 0;
  if (!parse_number(cell, value) || !std::isfinite(value)) fail(row, column, "expected a number");
  if (value < low || value > high) fail(row, column, fmt::format("expected a number from {} to {}", low, high));
  return value;
}

std::int64_t CsvTable::integer(int row, std::string_view column, std::int64_t low, std::int64_t high) const {
  const std::string& cell = text(row, column);
  std::int64_t value = 0;
  const auto [rest, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || rest != cell.data() + cell.size()) fail(row, column, "expected a whole number");
  if (value < low || value > high) fail(row, column, fmt::format("expected a whole number from {} to {}", low, high));
  return value;
}

std::string CsvTable::place(int row) const { return fmt::format("{}: row {}", source_, row + 1); }

void CsvTable::fail(int row, std::string_view column, const std::string& rule) const {
  throw InputError(fmt::format("{}, column {}: {}, got '{}'", place(row), column, rule, text(row, column)));
}

CsvTable read_csv(const std::string& path) { return {read_file(path), path}; }

}  // namespace sluice::model
