#include "tools/command/calibration_warning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

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

std::string unused_times_line(const std::vector<const Setup*>& runs) {
  const auto used = [&](const auto& by) { return std::any_of(runs.begin(), runs.end(), by); };
  const auto blocks = [](const Setup* run) { return run->schedule().has_joint_blocks(); };
  const auto passes = [](const Setup* run) { return run->schedule().vocabulary_barriers() > 0; };
  const auto copies = [](const Setup* run) { return run->scenario().training.activation_offload != 0; };
  const UniformTimes& times = runs.front()->scenario().uniform;
  std::vector<std::string_view> unused;
  if (times.joint && !used(blocks)) unused.push_back("fb");
  if (times.vocabulary && !used(passes)) unused.push_back("s");
  if (times.vocabulary_gradient && !used(passes)) unused.push_back("t");
  if (times.copy && !used(copies)) unused.push_back("copy");
  if (unused.empty()) return "";
  return fmt::format("simulate ignores {} of the uniform times: {} no such ops", fmt::join(unused, ", "),
                     runs.size() == 1 ? "the schedule has" : "the schedules have");
}

}  // namespace sluice::tools
