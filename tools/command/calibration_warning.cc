#include "tools/command/calibration_warning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sluice::tools {

std::string calibration_warning(const Scenario& scenario) {
  if (!scenario.correction) return "";
  const std::string other = other_origin(*scenario.correction, origin_of(scenario));
  return other.empty() ? "" : "warning: the calibration may not hold for " + other;
}

std::vector<std::string> assumed_times(const Scenario& scenario) {
  UniformTimes times = scenario.uniform;
  return scenario.cost == CostKind::uniform ? complete(times) : std::vector<std::string>();
}

std::string assumed_times_line(const Scenario& scenario) {
  const std::vector<std::string> assumed = assumed_times(scenario);
  if (assumed.empty() || assumed == std::vector<std::string>{"comm is 0"}) return "";
  return fmt::format("assumed (--uniform): {}", fmt::join(assumed, "; "));
}

}  // namespace sluice::tools
