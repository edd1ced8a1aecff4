#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/namespaces.h"
#include "sim/calibration/correction_fit.h"

namespace sluice::tools {

struct CorrectionRequest {
  std::vector<std::string> measured;  // tables and logs; "FILE=scenario.json"
  std::vector<std::string> ignored;   // columns of the tables
  CorrectionTerms terms = CorrectionTerms::automatic;
  int skip = 2;  // number of leading iterations of a log to ignore
  // Returns the scenario of a log that prints its arguments; empty: `base` is that of all files without their own.
  std::function<nlohmann::json(const std::string& log)> scenario_of_log;
  std::string output;  // empty: none
  bool json = false;
};

// Fits a scale and a fixed time of predictions to measured iterations. `base` is the scenario of files without one of
// their own, with paths relative to `folder`. Returns them with their uncertainty as text or JSON. Throws InputError.
std::string calibrate_correction(const CorrectionRequest& request, const nlohmann::json& base,
                                 const std::string& folder);

}  // namespace sluice::tools
