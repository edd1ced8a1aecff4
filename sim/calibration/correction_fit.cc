#include "sim/calibration/correction_fit.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "model/errors.h"

namespace sluice::sim {
namespace {

constexpr double kUsualWeight = 2;  // number of measurements that kUsualDeviation counts as

// Ratio of predictions from which a fixed time is fitted. The line through two measurements has no residual that would
// show their errors, and predicts times outside of both with a multiple of them.
double least_spread(std::size_t rows) { return rows > 2 ? 1.05 : 1.5; }

// Weighted least squares of 1 = scale x predicted / measured + fixed / measured.
struct Line {
  double scale = 1;
  double fixed_s = 0;
  int parameters = 1;
  double squares = 0;       // of relative residuals
  Eigen::Matrix2d inverse;  // of the normal matrix
};

// Least squares of 1 - predicted / measured = fixed / measured.
Line fit_fixed(std::span<const PredictedAndMeasured> rows) {
  double numerator = 0;
  double denominator = 0;
  for (const auto& [predicted, measured] : rows) {
    numerator += (measured - predicted) / (measured * measured);
    denominator += 1 / (measured * measured);
  }
  Line line;
  line.fixed_s = numerator / denominator;
  for (const auto& [predicted, measured] : rows) line.squares += std::pow((predicted + line.fixed_s) / measured - 1, 2);
  line.inverse.setZero();
  line.inverse(1, 1) = 1 / denominator;
  return line;
}

Line fit_line(std::span<const PredictedAndMeasured> rows, bool with_fixed) {
  const Eigen::Index n = std::ssize(rows);
  const Eigen::Index k = with_fixed ? 2 : 1;
  Eigen::MatrixXd design(n, k);
  for (Eigen::Index i = 0; i < n; ++i) {
    const PredictedAndMeasured& row = rows[i];
    design(i, 0) = row.predicted_s / row.measured_s;
    if (with_fixed) design(i, 1) = 1 / row.measured_s;
  }
  const Eigen::VectorXd ones = Eigen::VectorXd::Ones(n);
  const Eigen::VectorXd found = design.colPivHouseholderQr().solve(ones);
  Line line;
  line.scale = found[0];
  line.fixed_s = with_fixed ? found[1] : 0;
  line.parameters = static_cast<int>(k);
  line.squares = (ones - design * found).squaredNorm();
  line.inverse.setZero();
  line.inverse.topLeftCorner(k, k) = (design.transpose() * design).inverse();
  return line;
}

// Without the held-out error.
Correction fit_once(std::span<const PredictedAndMeasured> rows, CorrectionTerms terms) {
  if (rows.empty()) throw InputError("calibrate: expected at least one measured iteration");
  double least = rows[0].predicted_s;
  double most = least;
  for (const PredictedAndMeasured& row : rows) {
    if (!(row.predicted_s > 0 && row.measured_s > 0)) throw InputError("calibrate: expected times above 0");
    least = std::min(least, row.predicted_s);
    most = std::max(most, row.predicted_s);
  }
  const bool apart =
      terms == CorrectionTerms::automatic && rows.size() > 1 && most >= least_spread(rows.size()) * least;
  Line line = terms == CorrectionTerms::fixed ? fit_fixed(rows) : fit_line(rows, apart);
  // A negative time has no meaning.
  if (line.scale <= 0 || line.scale * least + line.fixed_s <= 0) {
    if (terms == CorrectionTerms::fixed) {
      throw InputError(fmt::format(
          "calibrate: the fixed time is {:.3g} s, but a predicted iteration takes only {:.3g} s: fit a scale instead",
          line.fixed_s, least));
    }
    line = fit_line(rows, false);
  }

  const double degrees = static_cast<double>(rows.size()) - line.parameters;
  const double squares = line.squares + kUsualWeight * kUsualDeviation * kUsualDeviation;
  const double variance = squares / (degrees + kUsualWeight);
  return {.scale = line.scale,
          .fixed_s = line.fixed_s,
          .shortest_s = least,
          .measurements = static_cast<int>(rows.size()),
          .deviation = std::sqrt(variance),
          .degrees = degrees + kUsualWeight,
          .covariance = {variance * line.inverse(0, 0), variance * line.inverse(0, 1), variance * line.inverse(1, 1)}};
}

}  // namespace

Correction fit_correction(std::span<const PredictedAndMeasured> rows, CorrectionTerms terms) {
  Correction out = fit_once(rows, terms);
  double squares = 0;
  const std::vector<double> errors = left_out_errors(rows, terms);
  for (const double error : errors) squares += error * error;
  if (!errors.empty()) out.held_out = std::sqrt(squares / static_cast<double>(errors.size()));
  return out;
}

std::vector<double> left_out_errors(std::span<const PredictedAndMeasured> rows, CorrectionTerms terms) {
  std::vector<double> out;
  if (rows.size() < 2) return out;
  for (std::size_t left = 0; left < rows.size(); ++left) {
    std::vector<PredictedAndMeasured> others(rows.begin(), rows.end());
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(left));
    out.push_back(fit_once(others, terms).at(rows[left].predicted_s).seconds / rows[left].measured_s - 1);
  }
  return out;
}

}  // namespace sluice::sim
