#include "tools/command/calibration_warning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/cost/cost_table.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {

std::optional<PredictedInterval> interval_of(const Scenario& scenario, double seconds) {
  const RunFacts facts = run_facts(scenario);
  if (facts.empty()) return std::nullopt;
  const ErrorClasses classes = catalogue_error_classes();
  PredictedInterval out;
  // No run with documents of different length, or without a backward, is in the tables.
  const bool unlike = scenario.documents || scenario.training.forward_only();
  const ErrorClass* const found = unlike ? nullptr : classes.find(facts);
  if (found != nullptr) {
    out = {.of = *found, .low_s = found->low * seconds, .high_s = found->high * seconds};
  }
  return out;
}

nlohmann::ordered_json interval_json(const PredictedInterval& interval) {
  if (!interval.of) return nullptr;
  const ErrorClass& of = *interval.of;
  nlohmann::ordered_json out = {{"description", of.name()}, {"class", nlohmann::ordered_json::object()}};
  for (const auto& [key, word] : of.facts) out["class"][key] = word;
  out["rows"] = of.rows;
  out["configurations"] = of.configurations;
  out["sources"] = of.sources;
  out["median"] = of.median;
  out["low_s"] = interval.low_s;
  out["high_s"] = interval.high_s;
  out["fraction"] = kRunsOfTen / 10.0;
  return out;
}

std::string interval_text(const std::optional<PredictedInterval>& interval) {
  if (!interval || !interval->of) return "";
  return fmt::format("{} to {} in {} of 10 such runs", time_text(from_seconds(interval->low_s, "interval")),
                     time_text(from_seconds(interval->high_s, "interval")), kRunsOfTen);
}

std::string such_runs_line(const std::optional<PredictedInterval>& interval) {
  if (!interval) return "";
  if (!interval->of) return "no measured runs like this one: the error of the iteration time is unknown";
  return fmt::format("such runs: {}; {} measured, {:+.1f} to {:+.1f} % of the prediction", interval->of->name(),
                     interval->of->rows, 100 * (interval->of->low - 1), 100 * (interval->of->high - 1));
}

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
