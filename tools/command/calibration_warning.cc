#include "tools/command/calibration_warning.h"

namespace sluice::tools {

std::string calibration_warning(const Scenario& scenario) {
  if (!scenario.correction) return "";
  const std::string other = other_origin(*scenario.correction, origin_of(scenario));
  return other.empty() ? "" : "warning: the calibration may not hold for " + other;
}

}  // namespace sluice::tools
