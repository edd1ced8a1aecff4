#include "tools/calibrate/calibrate_correction.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "model/input/csv.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "sim/calibration/correction_fit.h"
#include "sim/calibration/measured_iterations.h"
#include "sim/engine/predict.h"
#include "tools/calibrate/calibrate_catalogue.h"
#include "tools/command/command.h"
#include "tools/command/messages.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

struct Measurement {
  std::string place;
  std::string setting;
  PredictedAndMeasured times;
};

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Returns the predicted time without a correction.
double predicted_s(Scenario scenario) {
  scenario.correction.reset();
  const Prediction prediction = predict(Setup(scenario));
  return to_seconds(prediction.iteration);
}

void read_table(const MeasuredFile& file, const nlohmann::json& base, const std::string& folder,
                std::vector<Measurement>& out) {
  const CsvTable table = read_csv(file.path);
  for (const MeasuredIteration& row : read_measured_iterations(table, base, folder)) {
    if (row.out_of_memory) continue;
    out.push_back({row.place, row.setting, {predicted_s(row.scenario), row.seconds}});
  }
  const std::vector<std::string> unused = unused_columns(table);
  if (!unused.empty()) {
    print_message(fmt::format("{}: ignored columns: {}", file.path, fmt::join(unused, ", ")));
  }
}

void read_log(const MeasuredFile& file, const nlohmann::json& base, const std::string& folder, int skip,
              std::vector<Measurement>& out) {
  std::vector<double> seconds = read_megatron_log(file.path);
  if (std::ssize(seconds) <= skip) {
    throw InputError(
        fmt::format("{}: expected more than --skip {} iterations, got {}", file.path, skip, seconds.size()));
  }
  seconds.erase(seconds.begin(), seconds.begin() + skip);
  const std::string source = file.scenario.empty() ? "command line" : file.scenario;
  out.push_back({file.path,
                 fmt::format("median of {} iterations", seconds.size()),
                 {predicted_s(scenario_from_json(base, source, folder)), median_of(seconds)}});
}

void print_correction(const std::vector<Measurement>& rows, const Correction& correction,
                      const std::vector<double>& left_out, const std::string& output) {
  fmt::print("{:>10}  {:>10}  {:>8}  {:>8}  {:>8}\n", "measured", "predicted", "error", "after", "held out");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [predicted, measured] = rows[i].times;
    fmt::print("{:>10}  {:>10}  {:>+6.2f} %  {:>+6.2f} %  {:>8}  {}: {}\n",
               time_text(from_seconds(measured, rows[i].place)), time_text(from_seconds(predicted, rows[i].place)),
               100 * (predicted / measured - 1), 100 * (correction.at(predicted).seconds / measured - 1),
               left_out.empty() ? "-" : fmt::format("{:+.2f} %", 100 * left_out[i]), rows[i].place, rows[i].setting);
  }
  fmt::print("\niteration = {:.4f} x predicted + {}\n", correction.scale,
             time_text(from_seconds(correction.fixed_s, "fixed time")));
  const auto widest = std::max_element(rows.begin(), rows.end(), [](const Measurement& a, const Measurement& b) {
    return a.times.predicted_s < b.times.predicted_s;
  });
  const Correction::Interval interval = correction.at(widest->times.predicted_s);
  fmt::print("90 % of the iterations within {:.2f} % of that, from {} measurement{}{}\n",
             100 * (interval.high_s / interval.seconds - 1), correction.measurements,
             correction.measurements == 1 ? "" : "s",
             correction.measurements < 3 ? " and the usual error of calibrated predictions" : "");
  if (!output.empty()) fmt::print("sluice simulate ... --calibration {}\n", output);
}

}  // namespace

int calibrate_correction(const CorrectionRequest& request, const nlohmann::json& base, const std::string& folder) {
  std::vector<Measurement> rows;
  for (const std::string& text : request.measured) {
    const MeasuredFile file = measured_file(text);
    nlohmann::json scenario = base;
    std::string scenario_folder = folder;
    if (!file.scenario.empty()) {
      scenario = parse_json(read_file(file.scenario), file.scenario);
      scenario_folder = std::filesystem::path(file.scenario).parent_path().string();
    }
    if (file.path.ends_with(".csv")) {
      read_table(file, scenario, scenario_folder, rows);
    } else {
      read_log(file, scenario, scenario_folder, request.skip, rows);
    }
  }
  std::vector<PredictedAndMeasured> times;
  for (const Measurement& row : rows) times.push_back(row.times);
  const Correction correction = fit_correction(times);
  const std::vector<double> left_out = left_out_errors(times);
  if (!request.output.empty()) write_file_whole(request.output, to_json_text(correction));
  if (!request.json) {
    print_correction(rows, correction, left_out, request.output);
    return kDone;
  }
  nlohmann::ordered_json out = nlohmann::ordered_json::parse(to_json_text(correction));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    nlohmann::ordered_json row = {{"row", rows[i].place},
                                  {"measured_s", rows[i].times.measured_s},
                                  {"predicted_s", rows[i].times.predicted_s},
                                  {"corrected_s", correction.at(rows[i].times.predicted_s).seconds}};
    if (!left_out.empty()) row["left_out_error"] = left_out[i];
    out["rows"].push_back(std::move(row));
  }
  fmt::print("{}\n", out.dump(2));
  return kDone;
}

}  // namespace sluice::tools
