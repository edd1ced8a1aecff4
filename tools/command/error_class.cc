#include "tools/command/error_class.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

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

}  // namespace sluice::tools
