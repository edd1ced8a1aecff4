// Public header.
#pragma once

#include <array>
#include <string>

#include "model/namespaces.h"

namespace sluice::model {

class JsonReader;

// A correction of a scenario's predictions fitted to a user's measured iterations: measured = scale x predicted +
// fixed_s, with its uncertainty.
struct Correction {
  double scale = 1;
  double fixed_s = 0;  // per iteration, for every schedule: data loading, logging, and what is not modelled
  int measurements = 0;
  double deviation = 0;  // relative deviation of a measurement from the line
  double degrees = 0;    // degrees of freedom of the deviation
  // Variance of scale, covariance, variance of fixed_s.
  std::array<double, 3> covariance = {0, 0, 0};

  // The iteration time and its 90 % interval.
  struct Interval {
    double seconds = 0;
    double low_s = 0;
    double high_s = 0;
  };
  // By Student's t, with the uncertainty of the correction and of one more measurement.
  Interval at(double predicted_s) const;
};

inline constexpr double kConfidence = 0.9;

// {"schema": "sluice.calibration/1", "scale", "fixed_s", "measurements", "relative_deviation", "degrees_of_freedom",
// "covariance": [3]}. Throws InputError.
Correction correction_from_json(JsonReader reader);
Correction read_correction(const std::string& path);
std::string to_json_text(const Correction& correction);

}  // namespace sluice::model
