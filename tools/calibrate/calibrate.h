#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/calibrate/calibrate_catalogue.h"

namespace sluice::tools {

// The scenario of measured iterations.
struct CalibrationScenario {
  nlohmann::json base;  // of files without one of their own
  std::string file;     // that it was read from; empty: none
  int skip = 2;         // number of leading iterations of a log to ignore
  // Returns the scenario of a log that prints its arguments, where `base` has no model; empty: `base`.
  std::function<nlohmann::json(const std::string& log)> of_log;
};

// Fits the analytic cost model to the tables of the request, whose columns determine what is fitted, and writes the
// output that it names. Returns the result as text or JSON. Throws InputError.
std::string calibrate(const CatalogueRequest& request, const CalibrationScenario& scenario);

}  // namespace sluice::tools
