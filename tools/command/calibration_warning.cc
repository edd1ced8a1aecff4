#include "tools/command/calibration_warning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/cost/cost_table.h"

namespace sluice::tools {

std::string calibration_warning(const Scenario& scenario) {
  if (scenario.cost == CostKind::fitted && read_cost_table(scenario.cost_file).waited_for_cores) {
    return fmt::format("warning: {}: {}", scenario.cost_file, kWaitedForCores);
  }
  if (!scenario.correction) return "";
  const std::string other = other_origin(*scenario.correction, origin_of(scenario));
  return other.empty() ? "" : "warning: the calibration may not hold for " + other;
}

std::vector<std::string> assumed_times(const Scenario& scenario) {
  UniformTimes times = scenario.uniform;
  if (scenario.cost == CostKind::uniform) return complete(times);
  if (!scenario.model || scenario.model->left_out.empty()) return {};
  return {fmt::format("the model is without {}", scenario.model->left_out)};
}

std::string assumed_times_line(const Scenario& scenario) {
  const std::vector<std::string> assumed = assumed_times(scenario);
  if (assumed.empty() || assumed == std::vector<std::string>{"comm is 0"}) return "";
  return fmt::format("assumed{}: {}", scenario.cost == CostKind::uniform ? " (--uniform)" : "",
                     fmt::join(assumed, "; "));
}

}  // namespace sluice::tools
