#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "model/scenario/error_classes.h"
#include "model/scenario/scenario.h"

namespace sluice::tools {

// The error of a predicted iteration time, from the class of measured runs that the run is one of.
struct PredictedInterval {
  std::optional<ErrorClass> of;  // empty: no class covers the run
  double low_s = 0;              // kRunsOfTen of 10 such runs are between
  double high_s = 0;
};

// Returns the interval of a run that is predicted to take `seconds`; nullopt for runs whose times do not come from the
// analytic cost model alone (run_facts).
std::optional<PredictedInterval> interval_of(const Scenario& scenario, double seconds);

// Returns {"description", "class", "rows", "configurations", "sources", "median", "low_s", "high_s", "fraction"}; null
// if no class covers the run.
nlohmann::ordered_json interval_json(const PredictedInterval& interval);

// Returns "16.8 s to 23 s in 8 of 10 such runs"; "" if no class covers the run.
std::string interval_text(const std::optional<PredictedInterval>& interval);

// Returns a line that says which runs these are, or that none is like this one; "" for nullopt.
std::string such_runs_line(const std::optional<PredictedInterval>& interval);

}  // namespace sluice::tools
