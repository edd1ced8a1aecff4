#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

struct Scenario;
class JsonReader;

// What the error of a predicted iteration time depends on, as keys and words, from the most to the least important:
// "gpu" (its architecture), "model", "code_base" of the framework, "bits" of the operands of GEMMs, "pipeline",
// "framework", "expert_groups" (of models with experts) and "scale" (one node or several). What is unknown is absent.
using RunFacts = std::vector<std::pair<std::string, std::string>>;

// Returns the facts of a run that the analytic cost model predicts. Empty for other runs: with given times, a
// calibration (which has an error of its own), slow ranks and links, jitter, or without a model or a cluster.
RunFacts run_facts(const Scenario& scenario);

// Errors of predicted differences between configurations of the same model, batch and GPUs.
struct DifferenceErrors {
  double difference = 0;  // median error of the relative difference of two configurations
  // Standard deviations of the logarithm of measured over predicted times: the part that configurations with equal tp
  // and microbatch size share, and the rest.
  double group = 0;
  double own = 0;
};

// Measured runs that have some facts in common, and the errors of their predictions (docs/results.md, Intervals).
struct ErrorClass {
  RunFacts facts;
  int rows = 0;            // measured runs
  int configurations = 0;  // distinct ones among them
  int sources = 0;         // tables that have them
  // Of measured over predicted times.
  double median = 1;
  double low = 1;   // 1 of 10 runs is below
  double high = 1;  // 1 of 10 runs is above
  DifferenceErrors differences;

  std::string name() const;  // "Hopper, dense, Megatron, 16-bit"
};

inline constexpr int kRunsOfTen = 8;  // that are between `low` and `high` of their class

struct ErrorClasses {
  DifferenceErrors all;  // over all measured runs
  std::vector<ErrorClass> classes;

  // Returns the class with the most facts that all apply to a run; null if there is none.
  const ErrorClass* find(const RunFacts& facts) const;
};

// {"schema": "sluice.errors/1", "source", "all": {..}, "classes": [{"class": {KEY: WORD}, ...}]}. Throws InputError.
ErrorClasses error_classes_from_json(JsonReader reader);

// Returns the classes of the catalogue, which `benchmarks/accuracy --write-errors` writes.
ErrorClasses catalogue_error_classes();

}  // namespace sluice::model
