#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/cluster/cluster.h"
#include "sim/calibration/measured_iterations.h"

namespace sluice {

// A number of the catalogue that measured iterations can tell.
struct Constant {
  std::string
      name;        // "gpu/memory_efficiency", "inter_node/latency_s", "software/issue_s": where it stands in the files
  double low = 0;  // bounds that its meaning sets
  double high = 0;
  double typical = 0;  // what it is taken for where nothing better is known, and how far it may well be off, as a
  double spread = 0;   // factor's logarithm
  std::function<double&(Cluster&, Software&)> value;
  int table = -1;  // the only table whose rows it is of; -1: all
};

// All that can be fitted, by name.
const std::vector<Constant>& fittable_constants();
// Throws InputError for an unknown name, with the nearest known one.
const Constant& find_constant(const std::string& name);

// Rows that were measured together. A table counts by the square root of its rows, so that large ones do not drown
// small ones.
struct MeasuredTable {
  std::string name;
  std::vector<MeasuredIteration> rows;
};

struct ConstantsFitOptions {
  int folds = 10;           // of the cross-validation; 0: none
  double tolerance = 0.05;  // relative error of a row that counts as noise: larger ones count linearly, not squared
  double prior_weight = 1;  // of a constant's own prior against one row
  int most_steps = 40;
};

struct ErrorSummary {
  double mean = 0;  // of absolute relative errors
  double median = 0;
  double worst = 0;
  double signed_mean = 0;
};
ErrorSummary summarize(std::span<const double> relative_errors);

struct ConstantsFit {
  std::vector<double> values;                 // of the constants
  std::vector<std::vector<double>> errors;    // relative, by table and row
  std::vector<std::vector<double>> held_out;  // the same, each row predicted by a fit that has not seen its fold
  std::vector<double> deviations;  // of each constant's logarithm over the folds: how well the rows determine it
};

// Fits `constants` to measured iterations, whose other constants stay as their scenarios have them: least squares of
// log(predicted / measured) by Levenberg-Marquardt (Eigen), with Huber's loss, each constant drawn towards its typical
// value and kept within its bounds. Rows are simulated, not estimated. Folds are dealt by a hash of the row's setting,
// so that rows of one setting are in one fold. Deterministic. Throws InputError if a row cannot be simulated, or there
// are fewer rows than folds.
ConstantsFit fit_constants(std::span<const MeasuredTable> tables, std::span<const Constant> constants,
                           const ConstantsFitOptions& options);

}  // namespace sluice
