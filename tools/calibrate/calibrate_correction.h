#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::tools {

struct CorrectionRequest {
  std::vector<std::string> measured;  // tables and logs; "FILE=scenario.json"
  int skip = 2;                       // first iterations of a log that are left out
  std::string output;                 // empty: none
  bool json = false;
};

// Corrects predictions by a scale and a fixed time from a user's own measured iterations, and says how sure that is.
// `base` is the scenario of what comes without one, with paths from `folder`. Throws InputError.
int calibrate_correction(const CorrectionRequest& request, const nlohmann::json& base, const std::string& folder);

}  // namespace sluice::tools
