#include "model/scenario/correction.h"

#include <boost/math/distributions/students_t.hpp>
#include <cmath>

#include "model/input/files.h"
#include "model/input/json_reader.h"

namespace sluice::model {

Correction::Interval Correction::at(double predicted_s) const {
  const double seconds = scale * predicted_s + fixed_s;
  const double of_line = predicted_s * predicted_s * covariance[0] + 2 * predicted_s * covariance[1] + covariance[2];
  const double deviation_s = std::sqrt(std::max(0.0, of_line) + deviation * deviation * seconds * seconds);
  const boost::math::students_t distribution(degrees);
  const double half = quantile(distribution, (1 + kConfidence) / 2) * deviation_s;
  return {.seconds = seconds, .low_s = std::max(0.0, seconds - half), .high_s = seconds + half};
}

Correction correction_from_json(JsonReader reader) {
  if (reader.string("schema") != "sluice.calibration/1") {
    reader.at("schema").fail("expected \"sluice.calibration/1\"");
  }
  Correction out;
  out.scale = reader.number("scale", 1e-3, 1e3);
  out.fixed_s = reader.number("fixed_s", 0, 1e6);
  out.measurements = static_cast<int>(reader.integer("measurements", 1, 1'000'000));
  out.deviation = reader.number("relative_deviation", 1e-6, 1e3);
  out.degrees = reader.number("degrees_of_freedom", 1, 1e6);
  JsonReader covariance = reader.at("covariance");
  const auto numbers = covariance.elements();
  if (numbers.size() != out.covariance.size()) covariance.fail("expected three numbers");
  for (std::size_t i = 0; i < numbers.size(); ++i) out.covariance[i] = numbers[i].number(-1e12, 1e12);
  reader.allow("comment");
  reader.finish();
  return out;
}

Correction read_correction(const std::string& path) {
  const Json json = parse_json(read_file(path, 1 << 20), path);
  return correction_from_json(JsonReader(json, path));
}

std::string to_json_text(const Correction& correction) {
  const nlohmann::ordered_json out = {{"schema", "sluice.calibration/1"},
                                      {"scale", correction.scale},
                                      {"fixed_s", correction.fixed_s},
                                      {"measurements", correction.measurements},
                                      {"relative_deviation", correction.deviation},
                                      {"degrees_of_freedom", correction.degrees},
                                      {"covariance", correction.covariance}};
  return out.dump(2) + "\n";
}

}  // namespace sluice::model
