#include "model/scenario/correction.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <type_traits>

#include "model/input/files.h"
#include "model/input/json_reader.h"

namespace sluice::model {

namespace {

CorrectionOrigin origin_from_json(JsonReader reader) {
  CorrectionOrigin out{.model = reader.string_or("model", ""),
                       .parameters = reader.integer_or("parameters", 0, std::int64_t{1} << 62, 0),
                       .framework = reader.string_or("framework", ""),
                       .precision = reader.string_or("precision", ""),
                       .gpu = reader.string_or("gpu", "")};
  reader.finish();
  return out;
}

void check_covariance(const JsonReader& reader, const std::array<double, 3>& covariance) {
  const auto [scale, both, fixed] = covariance;
  if (scale < 0 || fixed < 0) reader.fail("expected variances (the first and the last number) of at least 0");
  // Room for rounding: both are 0 in a fit without residuals.
  if (std::abs(both) > 1.000001 * std::sqrt(scale) * std::sqrt(fixed)) {
    reader.fail("expected a covariance (the second number) within the square root of the product of the variances");
  }
}

std::string model_text(const CorrectionOrigin& origin) {
  return fmt::format("{} ({:.3g} B parameters)", origin.model, static_cast<double>(origin.parameters) / 1e9);
}

}  // namespace

Correction::Interval Correction::at(double predicted_s) const {
  const double on_line = fixed_s < 0 ? std::max(predicted_s, shortest_s) : predicted_s;
  const double ratio = predicted_s == on_line ? 1 : predicted_s / on_line;
  const double seconds = ratio * (scale * on_line + fixed_s);
  const double of_line = on_line * on_line * covariance[0] + 2 * on_line * covariance[1] + covariance[2];
  const double deviation_s =
      std::sqrt(ratio * ratio * std::max(0.0, of_line) + deviation * deviation * seconds * seconds);
  const boost::math::students_t distribution(degrees);
  const double half =
      std::max(quantile(distribution, (1 + kConfidence) / 2) * deviation_s, held_out.value_or(0) * seconds);
  return {.seconds = seconds, .low_s = std::max(0.0, seconds - half), .high_s = seconds + half};
}

std::string kept_terms(const Correction& correction) {
  if (correction.fixed_s == 0) return correction.scale == 1 ? "nothing" : "scale";
  return correction.scale == 1 ? "fixed" : "both";
}

std::string other_origin(const Correction& correction, const CorrectionOrigin& origin) {
  std::vector<std::string> here;
  std::vector<std::string> there;
  const auto differs = [&](const char* what, const auto& value_of, const auto& text_of) {
    using Value = std::decay_t<decltype(value_of(origin))>;
    if (value_of(origin) == Value{}) return;
    for (const CorrectionOrigin& known : correction.origins) {
      if (value_of(known) == Value{} || value_of(known) == value_of(origin)) return;
    }
    if (correction.origins.empty()) return;
    here.push_back(fmt::format("{}{}", what, text_of(origin)));
    there.push_back(fmt::format("{}{}", what, text_of(correction.origins.front())));
  };
  const auto parameters = [](const CorrectionOrigin& of) { return of.parameters; };
  const auto framework = [](const CorrectionOrigin& of) { return of.framework; };
  const auto precision = [](const CorrectionOrigin& of) { return of.precision; };
  const auto gpu = [](const CorrectionOrigin& of) { return of.gpu; };
  differs("model ", parameters, model_text);
  differs("framework ", framework, framework);
  differs("precision ", precision, precision);
  differs("GPU ", gpu, gpu);
  if (here.empty()) return "";
  return fmt::format("{} (it was made from {})", fmt::join(here, ", "), fmt::join(there, ", "));
}

Correction correction_from_json(JsonReader reader) {
  if (reader.string("schema") != "sluice.calibration/1") {
    reader.at("schema").fail("expected \"sluice.calibration/1\"");
  }
  Correction out;
  out.scale = reader.number("scale", 1e-3, 1e3);
  out.fixed_s = reader.number("fixed_s", -1e6, 1e6);
  out.shortest_s = reader.number_or("shortest_predicted_s", 0, 1e8, 0);
  if (out.fixed_s < 0 && out.scale * out.shortest_s + out.fixed_s <= 0) {
    reader.at("fixed_s").fail("expected a number above -scale x shortest_predicted_s");
  }
  out.measurements = static_cast<int>(reader.integer("measurements", 1, 1'000'000));
  out.weight = reader.number_or("weight", 0, 1, 1);
  const std::string kept = kept_terms(out);
  if (reader.string_or("kept", kept) != kept) {
    reader.at("kept").fail(fmt::format("expected \"{}\", as scale and fixed_s are", kept));
  }
  out.deviation = reader.number("relative_deviation", 1e-6, 1e3);
  out.degrees = reader.number("degrees_of_freedom", 1, 1e6);
  JsonReader covariance = reader.at("covariance");
  const auto numbers = covariance.elements();
  if (numbers.size() != out.covariance.size()) covariance.fail("expected three numbers");
  for (std::size_t i = 0; i < numbers.size(); ++i) out.covariance[i] = numbers[i].number(-1e12, 1e12);
  check_covariance(covariance, out.covariance);
  if (reader.has("held_out_error")) out.held_out = reader.number("held_out_error", 0, 1e3);
  if (reader.has("held_out_error_before")) out.held_out_before = reader.number("held_out_error_before", 0, 1e3);
  reader.allow("held_out_error");
  reader.allow("held_out_error_before");
  if (reader.has("made_from")) {
    for (const JsonReader& origin : reader.at("made_from").elements()) out.origins.push_back(origin_from_json(origin));
  }
  reader.allow("made_from");
  reader.allow("comment");
  reader.finish();
  return out;
}

Correction read_correction(const std::string& path) {
  const Json json = parse_json(read_file(path, 1 << 20), path);
  return correction_from_json(JsonReader(json, path));
}

std::string to_json_text(const Correction& correction) {
  nlohmann::ordered_json out = {{"schema", "sluice.calibration/1"},
                                {"kept", kept_terms(correction)},
                                {"weight", correction.weight},
                                {"scale", correction.scale},
                                {"fixed_s", correction.fixed_s},
                                {"shortest_predicted_s", correction.shortest_s},
                                {"measurements", correction.measurements},
                                {"relative_deviation", correction.deviation},
                                {"degrees_of_freedom", correction.degrees},
                                {"covariance", correction.covariance}};
  if (correction.held_out) out["held_out_error"] = *correction.held_out;
  if (correction.held_out_before) out["held_out_error_before"] = *correction.held_out_before;
  for (const CorrectionOrigin& origin : correction.origins) {
    nlohmann::ordered_json known = nlohmann::ordered_json::object();
    if (origin.parameters > 0) known = {{"model", origin.model}, {"parameters", origin.parameters}};
    if (!origin.framework.empty()) known["framework"] = origin.framework;
    if (!origin.precision.empty()) known["precision"] = origin.precision;
    if (!origin.gpu.empty()) known["gpu"] = origin.gpu;
    out["made_from"].push_back(std::move(known));
  }
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::model
