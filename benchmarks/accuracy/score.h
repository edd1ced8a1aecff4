#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/input/csv.h"
#include "model/scenario/scenario.h"

namespace sluice::bench::accuracy {

// A predicted and a measured value. Errors are averaged over each group.
struct Comparison {
  std::string group;    // the quantity: "iteration time", "memory by rank", ...
  std::string place;    // "file: row 7"
  std::string setting;  // description: "18.4B tp 8 pp 2 dp 16"
  double measured = 0;
  double predicted = 0;
  std::string unit;
  std::string gpu = {};  // of the scenario; empty: unknown
  std::string precision = {};
  std::string model = {};  // "126 layers of 16384"; empty: unknown, or a correction is applied

  // Relative error; above 0 if the prediction is too high.
  double error() const { return predicted / measured - 1; }
};

// Returns the comparison with the GPU, the precision and the model of its scenario.
Comparison with_scenario(Comparison comparison, const Scenario& scenario);

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

// Errors of the comparisons of one group, GPU and precision.
struct Summary {
  std::string group;
  std::string gpu;
  std::string precision;
  std::size_t count = 0;
  double mean = 0;  // of absolute errors; all values are fractions
  double median = 0;
  double worst = 0;
  double signed_mean = 0;
  std::string worst_row;  // place of the row with the worst error
};
std::vector<Summary> summaries(const TableScore& score);

// Returns "row 7" of the place "folder/file.csv: row 7".
std::string row_of(const std::string& place);

// "fits: 3 of 4 correct; out of memory: 1 of 1 correct"; "" without verdicts.
std::string fits_text(const TableScore& score);

// Summaries, one line per group of a table; with `rows`, also every comparison.
std::string score_text(const std::string& table, const TableScore& score, bool rows);
// A self-contained HTML page: the summaries, and predicted against measured values of every table.
std::string score_page(const std::vector<std::pair<std::string, TableScore>>& scores);
std::string score_json(const std::vector<std::pair<std::string, TableScore>>& scores);

}  // namespace sluice::bench::accuracy
