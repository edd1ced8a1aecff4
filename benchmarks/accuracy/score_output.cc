#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "benchmarks/accuracy/score.h"
#include "model/median.h"

namespace sluice::bench::accuracy {
namespace {

struct Hits {
  int fit_right = 0;
  int fit_all = 0;
  int oom_right = 0;
  int oom_all = 0;
};

Hits hits(const TableScore& score) {
  Hits out;
  for (const Verdict& verdict : score.verdicts) {
    const bool right = verdict.measured_fits == verdict.predicted_fits;
    (verdict.measured_fits ? out.fit_all : out.oom_all) += 1;
    if (right) (verdict.measured_fits ? out.fit_right : out.oom_right) += 1;
  }
  return out;
}

// "8.23 %"
std::string percent(double fraction) { return fmt::format("{:.2f} %", 100 * fraction); }

// A value with enough digits to distinguish rows.
std::string digits(double value) { return fmt::format("{:.5g}", value); }

}  // namespace

std::string row_of(const std::string& place) {
  const std::size_t at = place.rfind(": ");
  return at == std::string::npos ? place : place.substr(at + 2);
}

Comparison with_scenario(Comparison comparison, const Scenario& scenario) {
  if (scenario.cluster) comparison.gpu = scenario.cluster->gpu.name;
  comparison.precision = traits_of(scenario.training.precision).name;
  if (scenario.model) {
    comparison.model = fmt::format("{} layers of {}", scenario.model->layers, scenario.model->hidden);
    if (scenario.model->has_experts()) comparison.model += fmt::format(", {} experts", scenario.model->experts.count);
  }
  return comparison;
}

std::vector<Summary> summaries(const TableScore& score) {
  const auto belongs = [](const Comparison& comparison, const Summary& summary) {
    return comparison.group == summary.group && comparison.gpu == summary.gpu &&
           comparison.precision == summary.precision;
  };
  std::vector<Summary> out;
  for (const Comparison& comparison : score.comparisons) {
    if (std::any_of(out.begin(), out.end(), [&](const Summary& known) { return belongs(comparison, known); })) continue;
    out.push_back({.group = comparison.group, .gpu = comparison.gpu, .precision = comparison.precision});
  }
  for (Summary& summary : out) {
    std::vector<double> errors;
    for (const Comparison& comparison : score.comparisons) {
      if (!belongs(comparison, summary)) continue;
      errors.push_back(std::abs(comparison.error()));
      summary.mean += errors.back();
      summary.signed_mean += comparison.error();
      if (errors.size() > 1 && errors.back() <= summary.worst) continue;
      summary.worst = errors.back();
      summary.worst_row = comparison.place;
    }
    summary.count = errors.size();
    const auto n = static_cast<double>(errors.size());
    summary.mean /= n;
    summary.signed_mean /= n;
    summary.median = median(std::move(errors));
  }
  return out;
}

std::string fits_text(const TableScore& score) {
  if (score.verdicts.empty()) return "";
  const Hits found = hits(score);
  return fmt::format("fits: {} of {} correct; out of memory: {} of {} correct", found.fit_right, found.fit_all,
                     found.oom_right, found.oom_all);
}

std::string score_text(const std::string& table, const TableScore& score, bool rows) {
  std::string out;
  const auto to = std::back_inserter(out);
  for (const Summary& summary : summaries(score)) {
    fmt::format_to(to, "{:<22} {:<34} {:>5}  {:>8}  {:>8}  {:>8}  {:>+8.2f} %  {:<14} {:<11} {}\n", table,
                   summary.group, summary.count, percent(summary.mean), percent(summary.median), percent(summary.worst),
                   100 * summary.signed_mean, summary.gpu.empty() ? "-" : summary.gpu,
                   summary.precision.empty() ? "-" : summary.precision, row_of(summary.worst_row));
  }
  const std::string fits = fits_text(score);
  if (!fits.empty()) fmt::format_to(to, "{:<22} {}\n", table, fits);
  if (!score.skipped.empty()) {
    fmt::format_to(to, "{:<22} {} rows skipped, the first: {}\n", table, score.skipped.size(),
                   score.skipped.front().reason);
  }
  if (!rows) return out;
  for (const Comparison& comparison : score.comparisons) {
    fmt::format_to(to, "  {:>+7.2f} %  {:>10} {:>10} {:<4} {}: {}; {}\n", 100 * comparison.error(),
                   digits(comparison.measured), digits(comparison.predicted), comparison.unit, comparison.group,
                   comparison.place, comparison.setting);
  }
  for (const Verdict& verdict : score.verdicts) {
    if (verdict.measured_fits == verdict.predicted_fits) continue;
    fmt::format_to(to, "  wrong: {} {}, predicted to {}: {}\n", verdict.place,
                   verdict.measured_fits ? "ran" : "ran out of memory", verdict.predicted_fits ? "fit" : "not fit",
                   verdict.setting);
  }
  for (const Skipped& skipped : score.skipped) fmt::format_to(to, "  skipped: {}\n", skipped.reason);
  return out;
}

std::string score_json(const std::vector<std::pair<std::string, TableScore>>& scores) {
  nlohmann::ordered_json out = {{"schema", "sluice.accuracy/1"}};
  auto& tables = out["tables"] = nlohmann::ordered_json::array();
  for (const auto& [name, score] : scores) {
    nlohmann::ordered_json table = {{"table", name}};
    for (const Summary& summary : summaries(score)) {
      table["groups"].push_back({{"group", summary.group},
                                 {"rows", summary.count},
                                 {"mean_absolute_error", summary.mean},
                                 {"median_absolute_error", summary.median},
                                 {"worst_absolute_error", summary.worst},
                                 {"mean_error", summary.signed_mean},
                                 {"gpu", summary.gpu},
                                 {"precision", summary.precision},
                                 {"worst_row", summary.worst_row}});
    }
    const Hits found = hits(score);
    if (!score.verdicts.empty()) {
      table["fits"] = {{"fits_right", found.fit_right},
                       {"fits", found.fit_all},
                       {"out_of_memory_right", found.oom_right},
                       {"out_of_memory", found.oom_all}};
    }
    for (const Comparison& comparison : score.comparisons) {
      table["figures"].push_back({{"row", comparison.place},
                                  {"group", comparison.group},
                                  {"setting", comparison.setting},
                                  {"measured", comparison.measured},
                                  {"predicted", comparison.predicted},
                                  {"unit", comparison.unit},
                                  {"gpu", comparison.gpu},
                                  {"precision", comparison.precision},
                                  {"error", comparison.error()}});
    }
    for (const Verdict& verdict : score.verdicts) {
      table["verdicts"].push_back({{"row", verdict.place},
                                   {"setting", verdict.setting},
                                   {"fits", verdict.measured_fits},
                                   {"predicted_to_fit", verdict.predicted_fits}});
    }
    for (const Skipped& skipped : score.skipped) {
      table["skipped"].push_back({{"row", skipped.place}, {"reason", skipped.reason}});
    }
    tables.push_back(std::move(table));
  }
  return out.dump(2) + "\n";
}

}  // namespace sluice::bench::accuracy
