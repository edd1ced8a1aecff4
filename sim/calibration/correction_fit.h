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

// What is fitted; the scale is 1 where it is not, and the fixed time 0.
enum class CorrectionTerms {
  automatic,  // both; only the scale to one measurement, to two whose predictions differ by less than a factor of 1.5,
              // or to several by less than 5 %
  scale,
  fixed,
};

// Fits measured = scale x predicted + fixed_s by least squares of relative errors, with scale > 0. The fixed time may
// be negative, as long as the corrected times are positive; where they are not, `automatic` fits only the scale. The
// deviation is estimated from the residuals and from kUsualDeviation, which counts as two measurements. Throws
// InputError if there is no measurement, a time is not above 0, or a fixed time alone makes a time negative.
Correction fit_correction(std::span<const PredictedAndMeasured> rows,
                          CorrectionTerms terms = CorrectionTerms::automatic);

// Relative errors of each row predicted from the others; empty for fewer than two rows.
std::vector<double> left_out_errors(std::span<const PredictedAndMeasured> rows,
                                    CorrectionTerms terms = CorrectionTerms::automatic);

// Relative error of MLPerf GPT-3 after calibration on two rows (docs/results.md).
inline constexpr double kUsualDeviation = 0.01;

}  // namespace sluice::sim
