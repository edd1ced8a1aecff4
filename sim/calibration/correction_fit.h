#pragma once

#include <span>
#include <vector>

#include "model/scenario/correction.h"

namespace sluice::sim {

// A predicted and a measured time.
struct PredictedAndMeasured {
  double predicted_s = 0;
  double measured_s = 0;
};

// Fits measured = scale x predicted + fixed_s by least squares of relative errors, with scale > 0. The fixed time may
// be negative, as long as the corrected times are positive. Fits only the scale to one measurement, to two whose
// predictions differ by less than a factor of 1.5, or to several by less than 5 %. The deviation is estimated from the
// residuals and from kUsualDeviation, which counts as two measurements. Throws InputError if there is no measurement,
// or a time is not above 0.
Correction fit_correction(std::span<const PredictedAndMeasured> rows);

// Relative errors of each row predicted from the others; empty for fewer than two rows.
std::vector<double> left_out_errors(std::span<const PredictedAndMeasured> rows);

// Relative error of MLPerf GPT-3 after calibration on two rows (docs/results.md).
inline constexpr double kUsualDeviation = 0.01;

}  // namespace sluice::sim
