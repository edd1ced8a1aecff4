#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/scenario/correction.h"

namespace sluice::sim {

// A prediction and what was measured.
struct PredictedAndMeasured {
  double predicted_s = 0;
  double measured_s = 0;
};

// The line that least changes predictions into measurements, by relative errors: scale > 0, fixed_s >= 0. One
// measurement, or several whose predictions differ by less than 5 %, cannot tell the two apart: scale alone. How far
// measurements lie from the line is told by the residuals, and where these are few by what calibrated predictions of
// published iterations are off: kUsualDeviation counts as two measurements of it.
// Throws InputError if there is none, or one is not above 0.
Correction fit_correction(std::span<const PredictedAndMeasured> rows);

// Relative errors of each row predicted from the others; empty for fewer than two rows.
std::vector<double> left_out_errors(std::span<const PredictedAndMeasured> rows);

// Of MLPerf GPT-3 after calibration on two rows (docs/results.md).
inline constexpr double kUsualDeviation = 0.01;

// The seconds of each iteration that a Megatron-LM log tells: "elapsed time per iteration (ms): 1234.5", whatever else
// stands in the line. Throws InputError naming the file if there is none.
std::vector<double> read_megatron_log(const std::string& path);

}  // namespace sluice::sim
