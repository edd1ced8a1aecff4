// Public header.
#pragma once

#include <array>
#include <string>

#include "model/namespaces.h"

namespace sluice::model {

class JsonReader;

// What a user's own measured iterations say about a scenario's predictions: measured = scale x predicted + fixed_s, and
// how sure that is.
struct Correction {
  double scale = 1;
  double fixed_s = 0;  // of an iteration, whatever the schedule: data loading, logging, what the model leaves out
  int measurements = 0;
  double deviation = 0;  // of a measurement from the line, relative
  double degrees = 0;    // of freedom behind the deviation
  // Of scale and fixed_s: variance, covariance, variance.
  std::array<double, 3> covariance = {0, 0, 0};

  // The iteration time, and where it lies nine times out of ten.
  struct Interval {
    double seconds = 0;
    double low_s = 0;
    double high_s = 0;
  };
  // Student's t with the correction's own uncertainty and that of one more measurement.
  Interval at(double predicted_s) const;
};

inline constexpr double kConfidence = 0.9;

// {"schema": "sluice.calibration/1", "scale", "fixed_s", "measurements", "relative_deviation", "degrees_of_freedom",
// "covariance": [3]}. Throws InputError.
Correction correction_from_json(JsonReader reader);
Correction read_correction(const std::string& path);
std::string to_json_text(const Correction& correction);

}  // namespace sluice::model
