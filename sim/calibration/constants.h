#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/cluster/cluster.h"
#include "sim/calibration/log_fit.h"
#include "sim/calibration/measured_iterations.h"

namespace sluice::sim {

// A number of the catalogue that measured iterations can tell.
struct Constant {
  // Where it stands in a node's file, or behind "software/" in a program's: "gpu/memory_efficiency",
  // "inter_node/collective_efficiency", "software/issue_s".
  std::string name;
  FitConstant belief;  // bounds that its meaning sets, and a guess for scenarios that say nothing (0)
  std::function<double&(Cluster&, Software&)> value;
  int table = -1;        // the only table whose rows it is of; -1: all
  bool guessed = false;  // belief.guess is to stand, whatever the scenarios say
};

// All that can be fitted.
const std::vector<Constant>& fittable_constants();
// Throws InputError for an unknown name, with the nearest known one.
const Constant& find_constant(const std::string& name);

// Rows that were measured together, and err together: tables count alike, whatever the number of their rows.
struct MeasuredTable {
  std::string name;
  std::vector<MeasuredIteration> rows;  // none out of memory
};

struct ConstantsFit {
  LogFit fit;                        // rows of all tables, one after the other
  std::vector<FitErrors> in_sample;  // by table
  std::vector<FitErrors> held_out;
};

// Fits `constants` to measured iterations, whose other constants stay as their scenarios have them; each is drawn
// towards its guess, or else what the first scenario that has it says. Rows are simulated, not estimated. Folds are
// dealt by a hash of the setting, so that rows of one setting are in one fold, and the same on every machine. Throws
// InputError if a row cannot be simulated, or there are fewer rows than folds.
ConstantsFit fit_constants(std::span<const MeasuredTable> tables, std::span<const Constant> constants, int folds);

}  // namespace sluice::sim
