#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/input/csv.h"

namespace sluice::bench::accuracy {

// A predicted and a measured value. Errors are averaged over each group.
struct Comparison {
  std::string group;    // the quantity: "iteration time", "memory by rank", ...
  std::string place;    // "file: row 7"
  std::string setting;  // description: "18.4B tp 8 pp 2 dp 16"
  double measured = 0;
  double predicted = 0;
  std::string unit;

  // Relative error; above 0 if the prediction is too high.
  double error() const { return predicted / measured - 1; }
};

// Whether a run fits in memory.
struct Verdict {
  std::string place;
  std::string setting;
  bool measured_fits = true;
  bool predicted_fits = true;
};

// A row that could not be predicted, and the reason.
struct Skipped {
  std::string place;
  std::string reason;
};

// One of the configurations of a set that were all run, to choose from by prediction.
struct MeasuredRun {
  std::string set;  // what is not chosen: model, GPUs, batch
  std::string place;
  std::string setting;
  std::string alike;      // runs of a set with equal texts have similar errors
  double measured_s = 0;  // 0: the run failed
  double predicted_s = 0;
  bool predicted_fits = true;
  bool predicted_tight = false;  // within the memory margin, or does not fit
};

struct TableScore {
  std::vector<Comparison> comparisons;
  std::vector<Verdict> verdicts;
  std::vector<MeasuredRun> runs;
  std::vector<Skipped> skipped;
};

// A kind of published table, identified by its columns: any file that has them is scored.
struct TableKind {
  std::string name;
  std::vector<std::string> columns;
  std::function<TableScore(const CsvTable&)> score;
};

// All kinds; a table belongs to the first whose columns it has.
const std::vector<TableKind>& table_kinds();

// Summaries, one line per group of a table; with `rows`, also every comparison.
std::string score_text(const std::string& table, const TableScore& score, bool rows);
std::string score_json(const std::vector<std::pair<std::string, TableScore>>& scores);

}  // namespace sluice::bench::accuracy
