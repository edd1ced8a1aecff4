#include "tools/calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "import/import.h"
#include "import/megatron_log.h"
#include "model/errors.h"
#include "model/input/csv.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "model/median.h"
#include "model/namespaces.h"
#include "sim/calibration/correction_fit.h"
#include "sim/calibration/measured_iterations.h"
#include "sim/engine/predict.h"
#include "sim/planner/auto_setup.h"
#include "tools/calibrate/calibrate_catalogue.h"
#include "tools/command/document.h"
#include "tools/command/scenario_flags.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

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

struct Measurement {
  std::string place;
  std::string setting;
  PredictedAndMeasured times;
  CorrectionOrigin origin;
};

// Returns the predicted time without a correction.
double predicted_s(Scenario scenario) {
  scenario.correction.reset();
  const Prediction prediction = predict(*sim::planned_setup(scenario).setup);
  return to_seconds(prediction.iteration);
}

void read_table(const MeasuredFile& file, const nlohmann::json& base, const std::string& folder,
                const std::vector<std::string>& ignored, std::vector<Measurement>& out) {
  const CsvTable table = read_iteration_table(file.path, ignored);
  for (const MeasuredIteration& row : read_measured_iterations(table, base, folder)) {
    if (row.out_of_memory) continue;
    out.push_back({row.place, row.setting, {predicted_s(row.scenario), row.seconds}, origin_of(row.scenario)});
  }
}

void read_log(const MeasuredFile& file, const nlohmann::json& base, const std::string& folder, int skip,
              std::vector<Measurement>& out) {
  MegatronLog log = read_megatron_log(file.path);
  std::vector<double>& seconds = log.seconds;
  if (std::ssize(seconds) <= skip) {
    throw InputError(
        fmt::format("{}: expected more than --skip {} iterations, got {}", file.path, skip, seconds.size()));
  }
  const std::string source = file.scenario.empty() ? "command line" : file.scenario;
  const Scenario scenario = scenario_from_json(base, source, folder);
  check_arguments(log, scenario, skip);
  seconds.erase(seconds.begin(), seconds.begin() + skip);
  out.push_back({file.path,
                 fmt::format("median of {} iterations", seconds.size()),
                 {predicted_s(scenario), median(seconds)},
                 origin_of(scenario)});
}

// Which terms are kept, and with which weight.
std::string kept_text(const Correction& correction, CorrectionTerms terms) {
  const std::string kept = kept_terms(correction);
  if (kept == "nothing") {
    return "kept: nothing: the measurements do not show an error that iterations with other settings are likely to "
           "have, too\n";
  }
  const std::string what = kept == "both" ? "a scale and a fixed time" : kept == "fixed" ? "a fixed time" : "a scale";
  if (terms != CorrectionTerms::automatic) return fmt::format("kept: {}, as --fit specifies\n", what);
  return fmt::format("kept: {}, with weight {:.2f} (1: least squares, 0: nothing)\n", what, correction.weight);
}

// The error that calibrated predictions of other settings can be expected to have.
std::string error_text(const std::vector<double>& left_out, const Correction& correction) {
  if (!correction.held_out) return "held-out error: not measurable with one measurement\n";
  double worst = 0;
  for (const double error : left_out) worst = std::max(worst, std::abs(error));
  const double before = correction.held_out_before.value_or(0);
  return fmt::format(
      "held-out error: {:.2f} % (root mean square), {:.2f} % worst; without a correction {:.2f} %: gain {:+.2f} "
      "points; each of the {} measurements predicted from {}\n",
      100 * *correction.held_out, 100 * worst, 100 * before, 100 * (before - *correction.held_out) + 0.0,
      left_out.size(), left_out.size() == 2 ? "the other" : "others");
}

// "+0.51 %"; never "-0.00 %".
std::string error_text(double error) { return fmt::format("{:+.2f} %", std::round(1e4 * error) / 100 + 0.0); }

std::string correction_text(const std::vector<Measurement>& rows, const Correction& correction,
                            const std::vector<double>& left_out, const CorrectionRequest& request) {
  std::string out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "{:>10}  {:>10}  {:>8}  {:>8}  {:>8}\n", "measured", "predicted", "error", "after", "held out");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [predicted, measured] = rows[i].times;
    fmt::format_to(to, "{:>10}  {:>10}  {:>8}  {:>8}  {:>8}  {}: {}\n",
                   time_text(from_seconds(measured, rows[i].place)), time_text(from_seconds(predicted, rows[i].place)),
                   error_text(predicted / measured - 1), error_text(correction.at(predicted).seconds / measured - 1),
                   left_out.empty() ? "-" : error_text(left_out[i]), rows[i].place, rows[i].setting);
  }
  fmt::format_to(to, "\niteration = {:.4f} x predicted {} {}\n", correction.scale, correction.fixed_s < 0 ? "-" : "+",
                 time_text(from_seconds(std::abs(correction.fixed_s), "fixed time")));
  if (correction.fixed_s < 0) {
    fmt::format_to(
        to,
        "The fixed time is negative: predictions have too much time that does not grow with the number of "
        "microbatches (bubble, gradient reduction, optimizer step). Below {} predicted, the shortest measurement, "
        "it decreases in proportion to the prediction.\n",
        time_text(from_seconds(correction.shortest_s, "prediction")));
  }
  out += kept_text(correction, request.terms) + error_text(left_out, correction);
  if (!request.output.empty()) fmt::format_to(to, "sluice simulate ... --calibration {}\n", request.output);
  return out;
}

// Fits the correction. Throws InputError if times are so far from predictions that their unit is probably wrong.
Correction fitted(const std::vector<Measurement>& rows, std::span<const PredictedAndMeasured> times,
                  CorrectionTerms terms) {
  for (const Measurement& row : rows) {
    const double ratio = row.times.measured_s / row.times.predicted_s;
    if (ratio >= 1e-3 && ratio <= 1e3) continue;
    throw InputError(
        fmt::format("{}: the measured time is {:.3g} times the predicted one, expected 0.001 to 1000 times: check the "
                    "unit of the measurement and the scenario",
                    row.place, ratio));
  }
  Correction correction = fit_correction(times, terms);
  for (const Measurement& row : rows) {
    if (row.origin == CorrectionOrigin{}) continue;
    if (std::find(correction.origins.begin(), correction.origins.end(), row.origin) == correction.origins.end()) {
      correction.origins.push_back(row.origin);
    }
  }
  const std::string source = "the fitted calibration";
  const nlohmann::json written = parse_json(to_json_text(correction), source);
  return correction_from_json(JsonReader(written, source));
}

// Fits a scale and a fixed time of predictions to measured iterations. `base` is the scenario of files without one of
// their own, with paths relative to `folder`. Returns them with their uncertainty as text or JSON. Throws InputError.
std::string calibrate_correction(const CorrectionRequest& request, const nlohmann::json& base,
                                 const std::string& folder) {
  std::vector<Measurement> rows;
  for (const std::string& text : request.measured) {
    const MeasuredFile file = measured_file(text);
    nlohmann::json scenario = base;
    std::string scenario_folder = folder;
    const bool own = file.scenario.empty() && request.scenario_of_log && !file.path.ends_with(".csv") &&
                     has_megatron_arguments(ScenarioFlags::file_text(file.path));
    if (own) {
      scenario = request.scenario_of_log(file.path);
      ScenarioFlags::print_notes(file.path);
    } else if (!file.scenario.empty()) {
      scenario = parse_json(read_file(file.scenario), file.scenario);
      scenario_folder = ScenarioFlags::folder_of(file.scenario);
    }
    if (file.path.ends_with(".csv")) {
      read_table(file, scenario, scenario_folder, request.ignored, rows);
    } else {
      read_log(file, scenario, scenario_folder, request.skip, rows);
    }
  }
  check_any_measured(request.measured, rows.size());
  std::vector<PredictedAndMeasured> times;
  for (const Measurement& row : rows) times.push_back(row.times);
  const Correction correction = fitted(rows, times, request.terms);
  const std::vector<double> left_out = left_out_errors(times, request.terms);
  if (!request.output.empty()) write_file_whole(request.output, to_json_text(correction));
  if (!request.json) return correction_text(rows, correction, left_out, request);
  nlohmann::ordered_json out = nlohmann::ordered_json::parse(to_json_text(correction));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    nlohmann::ordered_json row = {{"row", rows[i].place},
                                  {"measured_s", rows[i].times.measured_s},
                                  {"predicted_s", rows[i].times.predicted_s},
                                  {"corrected_s", correction.at(rows[i].times.predicted_s).seconds}};
    if (!left_out.empty()) row["left_out_error"] = left_out[i];
    out["rows"].push_back(std::move(row));
  }
  return json_text(out);
}

// Throws InputError for a column to ignore that no table has.
void check_ignored(const CatalogueRequest& request) {
  std::vector<CsvTable> tables;
  for (const std::string& text : request.tables) {
    const std::string path = measured_file(text).path;
    if (!request.ignored.empty() && path.ends_with(".csv")) tables.push_back(read_csv(path));
  }
  for (const std::string& column : request.ignored) {
    if (std::any_of(tables.begin(), tables.end(), [&](const CsvTable& table) { return table.has(column); })) continue;
    throw InputError(fmt::format("--ignore-columns: no table has a column '{}'", column));
  }
}

void check_no_terms(const CatalogueRequest& request, const char* what) {
  if (request.terms) throw InputError(fmt::format("calibrate: --fit has no effect on {}", what));
}

}  // namespace

std::string calibrate(const CatalogueRequest& request, const CalibrationScenario& scenario) {
  check_ignored(request);
  const nlohmann::json& base = scenario.base;
  if (is_kernel_times(request.tables.front())) {
    if (!base.empty()) {
      throw InputError("calibrate: --scenario and the flags of a scenario have no effect on kernel times");
    }
    check_no_terms(request, "kernel times");
    return calibrate_kernel_times(request);
  }
  if (measures_kernels_or_links(request.tables.front())) {
    check_no_terms(request, "timed kernels and collectives");
    return calibrate_kernels_and_links(request);
  }
  const std::string folder = ScenarioFlags::folder_of(scenario.file);
  const bool has_model =
      base.contains("model") && (base.at("model").is_string() || base.at("model").contains("num_layers"));
  const auto has_own = [](const std::string& text) { return !measured_file(text).scenario.empty(); };
  if (!base.empty() && std::all_of(request.tables.begin(), request.tables.end(), has_own)) {
    throw InputError(
        "calibrate: --scenario and the flags of a scenario have no effect: each file has its own (FILE=...)");
  }
  if (!request.constants.empty()) {
    check_no_terms(request, "--constants");
    return calibrate_constants(request, base, folder);
  }
  CorrectionRequest correction{.measured = request.tables,
                               .ignored = request.ignored,
                               .terms = request.terms.value_or(CorrectionTerms::automatic),
                               .skip = scenario.skip,
                               .output = request.output,
                               .json = request.json};
  if (scenario.file.empty() && !has_model) correction.scenario_of_log = scenario.of_log;
  return calibrate_correction(correction, base, folder);
}

}  // namespace sluice::tools
