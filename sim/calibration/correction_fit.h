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
  automatic,  // a scale, a fixed time, both or nothing, shrunk toward nothing
  scale,      // exactly these, not shrunk
  fixed,
};

// What is known of the errors of predictions before any measurement, from the residuals of published iterations by
// model, GPU and precision (decision 0032; `benchmarks/accuracy --calibrated` estimates it again). Values are
// deviations of log(measured / predicted).
struct CorrectionPrior {
  double scale = 0.128;      // between settings' common factors
  double unlike = 0.6;       // the same of settings that no published run is like (assumed)
  double unlikely = 0.03;    // the fraction of such settings (assumed)
  double fixed = 0.082;      // of the fixed time as a fraction of the shortest prediction
  double deviation = 0.067;  // of settings from their common correction: median, where predictions are 1 s
  double power = 0.17;       // the median is deviation x predicted_s^-power
  double spread = 0.98;      // standard deviation of the logarithm of the deviation
};
inline constexpr CorrectionPrior kCorrectionPrior;

// Fewest measurements to which `automatic` fits a fixed time.
inline constexpr std::size_t kFewestForFixed = 4;

// Fits measured = scale x predicted + fixed_s.
//
// `automatic` computes the posterior of both terms under kCorrectionPrior, with an unknown deviation of the
// measurements, and keeps the point of its credible region of kConfidence that is nearest to no correction: nothing, if
// the region includes no correction. Up to three measurements it decides between a scale and nothing; from
// kFewestForFixed on, it takes the terms with the smallest held-out error. `scale` and `fixed` are least squares of
// relative errors; then the deviation is estimated from the residuals and from the prior, which counts as two
// measurements. A fixed time may be negative as long as the corrected times are positive. Throws InputError if there
// is no measurement, a time is not above 0, or `fixed` makes a time negative.
Correction fit_correction(std::span<const PredictedAndMeasured> rows,
                          CorrectionTerms terms = CorrectionTerms::automatic);

// Relative errors of each row predicted from the others, with the choice of terms repeated; with more than 20 rows, of
// 20 folds. Empty for fewer than two rows.
std::vector<double> left_out_errors(std::span<const PredictedAndMeasured> rows,
                                    CorrectionTerms terms = CorrectionTerms::automatic);

}  // namespace sluice::sim
