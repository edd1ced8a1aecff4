#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/input/csv.h"

namespace sluice::bench::accuracy {

// One predicted figure against a measured one. Figures of a group are averaged together.
struct Figure {
  std::string group;    // what is compared: "iteration time", "memory by rank", ...
  std::string place;    // "file: row 7"
  std::string setting;  // in a few words: "18.4B tp 8 pp 2 dp 16"
  double measured = 0;
  double predicted = 0;
  std::string unit;

  // Relative: above 0 where more is predicted than was measured.
  double error() const { return predicted / measured - 1; }
};

// Whether a run fits in memory.
struct Verdict {
  std::string place;
  std::string setting;
  bool measured_fits = true;
  bool predicted_fits = true;
};

// A row that could not be predicted, and why.
struct Skipped {
  std::string place;
  std::string reason;
};

struct TableScore {
  std::vector<Figure> figures;
  std::vector<Verdict> verdicts;
  std::vector<Skipped> skipped;
};

// A kind of published table, known by its columns alone: any file that has them is scored.
struct TableKind {
  std::string name;
  std::vector<std::string> columns;
  std::function<TableScore(const CsvTable&)> score;
};

// All kinds; a table belongs to the first whose columns it has.
const std::vector<TableKind>& table_kinds();

// Summaries, one line for each group of a table; with `rows`, every figure.
std::string score_text(const std::string& table, const TableScore& score, bool rows);
std::string score_json(const std::vector<std::pair<std::string, TableScore>>& scores);

}  // namespace sluice::bench::accuracy
