#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/scenario/error_classes.h"
#include "model/scenario/scenario.h"
#include "model/scenario/setup.h"

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

inline constexpr const char* kWaitedForCores =
    "some measured times include waits for cores; measure again on an idle machine, with at most one worker per core";

// Returns a warning if the scenario's cost file has kWaitedForCores, or its calibration was made from another model,
// framework, precision or GPU; "" if not.
std::string calibration_warning(const Scenario& scenario);

// Returns what a scenario assumes: with uniform costs the times that it does not give, otherwise what the model's file
// has that is not part of the model.
std::vector<std::string> assumed_times(const Scenario& scenario);

// Returns a line about them; "" if there are none.
std::string assumed_times_line(const Scenario& scenario);

// Returns a line about the times of `--uniform` that none of `runs`, of which the first has given them, has ops for; ""
// if there are none.
std::string unused_times_line(const std::vector<const Setup*>& runs);

}  // namespace sluice::tools
