// Public header.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

class JsonReader;

// What a correction was made from, as far as it determines where the correction holds. Empty and 0: unknown.
struct CorrectionOrigin {
  std::string model;
  std::int64_t parameters = 0;  // of the model
  std::string framework;
  std::string precision;  // of GEMM operands: "16-bit" or "8-bit"
  std::string gpu;

  friend bool operator==(const CorrectionOrigin&, const CorrectionOrigin&) = default;
};

// A correction of a scenario's predictions fitted to a user's measured iterations: measured = scale x predicted +
// fixed_s, with its uncertainty.
struct Correction {
  double scale = 1;
  // Per iteration, for every schedule. Above 0: what is not modeled, such as data loading and logging. Below 0: the
  // prediction has too much time that does not grow with the number of microbatches.
  double fixed_s = 0;
  // The shortest prediction that it was fitted to. Below it, a negative fixed time decreases in proportion to the
  // prediction, so that corrected times stay above 0.
  double shortest_s = 0;
  int measurements = 0;
  double weight = 1;     // fraction of the least-squares correction that is kept, 0 to 1
  double deviation = 0;  // relative deviation of a measurement from the line
  double degrees = 0;    // degrees of freedom of the deviation
  // Variance of scale, covariance, variance of fixed_s.
  std::array<double, 3> covariance = {0, 0, 0};
  // Root mean square of the relative errors of the measurements, each predicted from the others; nullopt for one.
  std::optional<double> held_out;
  std::optional<double> held_out_before;  // the same without the correction
  std::vector<CorrectionOrigin> origins;  // distinct; empty: unknown

  // The iteration time and its 90 % interval.
  struct Interval {
    double seconds = 0;
    double low_s = 0;
    double high_s = 0;
  };
  // By Student's t, with the uncertainty of the correction and of one more measurement; never narrower than the
  // held-out error.
  Interval at(double predicted_s) const;
};

// Returns which terms the correction has: "nothing", "scale", "fixed" or "both".
std::string kept_terms(const Correction& correction);

// Returns how `origin` differs from all origins of the correction: "model b, GPU h100-80gb (it was made from model a,
// GPU a100-80gb)"; empty if it does not, or is unknown.
std::string other_origin(const Correction& correction, const CorrectionOrigin& origin);

inline constexpr double kConfidence = 0.9;

// {"schema": "sluice.calibration/1", "kept", "weight", "scale", "fixed_s", "shortest_predicted_s", "measurements",
// "relative_deviation", "degrees_of_freedom", "covariance": [3], "held_out_error", "held_out_error_before",
// "made_from": [{"model", "parameters", "framework", "precision", "gpu"}]}. Throws InputError, also if the covariance
// is not one, or "kept" is not kept_terms.
Correction correction_from_json(JsonReader reader);
Correction read_correction(const std::string& path);
std::string to_json_text(const Correction& correction);

}  // namespace sluice::model
