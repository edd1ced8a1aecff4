#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/cluster/cluster.h"
#include "sim/calibration/log_fit.h"
#include "sim/calibration/measured_iterations.h"

namespace sluice::sim {

// A number of the catalogue that can be fitted to measured iterations.
struct Constant {
  // Its place in a node's file or, after "software/", in a framework's file: "gpu/memory_efficiency",
  // "inter_node/collective_efficiency", "software/issue_s".
  std::string name;
  FitConstant belief;  // bounds from its meaning, and a guess for scenarios without a value (0)
  std::function<double&(Cluster&, Software&)> value;
  int table = -1;        // the only table to which it applies; -1: all
  bool guessed = false;  // belief.guess replaces the values of the scenarios
};

// All that can be fitted.
const std::vector<Constant>& fittable_constants();

// Throws InputError for an unknown name, with the nearest known one.
const Constant& find_constant(const std::string& name);

// Rows that were measured together and have correlated errors: tables have equal weight, whatever their number of rows.
struct MeasuredTable {
  std::string name;
  std::vector<MeasuredIteration> rows;  // none out of memory
};

struct ConstantsFit {
  LogFit fit;                        // rows of all tables, concatenated
  std::vector<FitErrors> in_sample;  // by table
  std::vector<FitErrors> held_out;
};

// Fits `constants` to measured iterations; all other constants keep the values of the scenarios. Each constant is
// pulled towards the value of the first scenario that has one, or its guess. Each row is simulated. Rows are assigned
// to folds by a hash of their setting, so rows of one setting are in one fold, on every machine the same. Throws
// InputError if a row cannot be simulated or there are fewer rows than folds.
ConstantsFit fit_constants(std::span<const MeasuredTable> tables, std::span<const Constant> constants, int folds);

// Fitted constants as files for --cluster and --software.
struct ConstantsFiles {
  std::string node;      // "sluice.node/1", with GPU and links inline; empty if no constant of a node was fitted
  std::string software;  // "sluice.software/1"; empty likewise
};

// Returns the node and the framework of `scenario`, a scenario document whose relative paths are resolved against
// `folder`, with `values` of `constants`, to three digits, and `source` as their source. Throws InputError.
ConstantsFiles files_with_constants(const nlohmann::json& scenario, const std::string& folder,
                                    std::span<const Constant> constants, std::span<const double> values,
                                    const std::string& source);

}  // namespace sluice::sim
