#include "sim/calibration/correction_fit.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <boost/math/distributions/chi_squared.hpp>
#include <cmath>
#include <initializer_list>
#include <optional>

#include "model/errors.h"

namespace sluice::sim {
namespace {

using Rows = std::span<const PredictedAndMeasured>;

constexpr double kPriorWeight = 2;  // number of measurements that the prior's deviation counts as
constexpr std::size_t kMostFolds = 20;

double shortest_s(Rows rows) {
  double least = rows[0].predicted_s;
  for (const PredictedAndMeasured& row : rows) least = std::min(least, row.predicted_s);
  return least;
}

// The prior's median deviation at the geometric mean of the predictions.
double usual_deviation(Rows rows) {
  double logarithms = 0;
  for (const PredictedAndMeasured& row : rows) logarithms += std::log(row.predicted_s);
  return kCorrectionPrior.deviation * std::exp(-kCorrectionPrior.power * logarithms / static_cast<double>(rows.size()));
}

// Terms of a correction, in standard deviations of the prior: the logarithm of the scale, and the fixed time.
using Terms = Eigen::Matrix<double, Eigen::Dynamic, 1, 0, 2, 1>;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, 0, 2, 2>;

// What is fitted to rows with the prior.
class ShrunkenFit {
 public:
  ShrunkenFit(Rows rows, bool scale, bool fixed)
      : rows_(rows), scale_(scale), fixed_(fixed), shortest_s_(shortest_s(rows)), usual_(usual_deviation(rows)) {
    deviations_ = Matrix::Zero(2, scale && fixed ? 2 : 1);
    if (scale) deviations_(0, 0) = kCorrectionPrior.scale;
    if (fixed) deviations_(1, deviations_.cols() - 1) = kCorrectionPrior.fixed * shortest_s_;
    mean_ = Terms::Zero(deviations_.cols());
    // Gauss-Newton: each pass is linear about the mean of the last one.
    constexpr int kPasses = 20;
    for (int pass = 0; pass < kPasses && valid_; ++pass) {
      const Terms last = mean_;
      update();
      if ((mean_ - last).norm() < 1e-7) break;
    }
  }

  // Whether the corrected times are positive.
  bool valid() const { return valid_; }

  // Returns the correction of the terms within the credible region that are nearest to none.
  Correction kept() const {
    const double distance = std::sqrt(std::max(0.0, mean_.dot(covariance_.ldlt().solve(mean_))));
    const boost::math::chi_squared region(static_cast<double>(mean_.size()));
    const double factor = std::max(0.0, 1 - std::sqrt(quantile(region, kConfidence)) / distance);
    return correction(factor > 0 ? Terms(factor * mean_) : Terms::Zero(mean_.size()));
  }
  Correction nothing() const { return correction(Terms::Zero(mean_.size())); }

 private:
  // Scale and fixed time.
  Eigen::Vector2d line(const Terms& terms) const {
    const Eigen::Vector2d out = deviations_ * terms;
    return {std::exp(out[0]), out[1]};
  }

  // Normal equations of log(measured / predicted) = log(scale + fixed_s / predicted), linear about the mean.
  void linearize() {
    const Eigen::Vector2d about = line(mean_);
    normal_ = Matrix::Zero(mean_.size(), mean_.size());
    right_ = Terms::Zero(mean_.size());
    squares_ = 0;
    for (const auto& [predicted, measured] : rows_) {
      const double ratio = about[0] + about[1] / predicted;
      valid_ = valid_ && ratio > 0;
      if (!valid_) return;
      const Terms slope = deviations_.transpose() * Eigen::Vector2d(about[0] / ratio, 1 / (predicted * ratio));
      const double value = std::log(measured / predicted) - std::log(ratio) + slope.dot(mean_);
      normal_ += slope * slope.transpose();
      right_ += value * slope;
      squares_ += value * value;
    }
  }

  // The posterior of the terms: for each of some deviations of the measurements, and of settings that are like
  // published ones or not, it is normal; averages them.
  void update() {
    linearize();
    if (!valid_) return;
    struct Part {
      double log_weight;
      double precision;
      Terms mean;
      Matrix covariance;
    };
    constexpr int kParts = 13;
    std::vector<Part> parts;
    double greatest = -INFINITY;
    for (const bool unlike : {false, true}) {
      Matrix prior = Matrix::Identity(mean_.size(), mean_.size());
      if (unlike) prior(0, 0) = std::pow(kCorrectionPrior.scale / kCorrectionPrior.unlike, 2);
      if (unlike && !scale_) break;
      const double share = unlike ? kCorrectionPrior.unlikely : 1 - kCorrectionPrior.unlikely;
      for (int i = 0; i < kParts; ++i) {
        const double logarithm = 6.0 * i / (kParts - 1) - 3;  // of the deviation over the usual one, in spreads
        const double deviation = usual_ * std::exp(kCorrectionPrior.spread * logarithm);
        const double precision = 1 / (deviation * deviation);
        const Matrix inverse = (normal_ * precision + prior).inverse();
        const Terms mean = inverse * right_ * precision;
        const double weight =
            std::log(share) - logarithm * logarithm / 2 - static_cast<double>(rows_.size()) * std::log(deviation) +
            std::log(inverse.determinant() * prior.determinant()) / 2 - (squares_ - right_.dot(mean)) * precision / 2;
        parts.push_back({weight, precision, mean, inverse});
        greatest = std::max(greatest, weight);
      }
    }
    double total = 0;
    Terms mean = Terms::Zero(mean_.size());
    Matrix second = Matrix::Zero(mean_.size(), mean_.size());
    precision_ = 0;
    for (const Part& part : parts) {
      const double weight = std::exp(part.log_weight - greatest);
      total += weight;
      mean += weight * part.mean;
      second += weight * (part.covariance + part.mean * part.mean.transpose());
      precision_ += weight * part.precision;
    }
    mean_ = mean / total;
    covariance_ = second / total - mean_ * mean_.transpose();
    precision_ /= total;
  }

  Correction correction(const Terms& kept) const {
    const Eigen::Vector2d found = line(kept);
    const Terms off = mean_ - kept;
    const Eigen::DiagonalMatrix<double, 2> slopes(found[0], 1.0);
    const Eigen::Matrix2d covariance =
        slopes * deviations_ * (covariance_ + off * off.transpose()) * deviations_.transpose() * slopes;
    const Terms least_squares = normal_.completeOrthogonalDecomposition().solve(right_);
    const double all = right_.dot(least_squares);
    return {.scale = found[0],
            .fixed_s = fixed_ ? found[1] : 0,
            .shortest_s = shortest_s_,
            .measurements = static_cast<int>(rows_.size()),
            .weight = kept.isZero() || all <= 0 ? 0 : std::clamp(right_.dot(kept) / all, 0.0, 1.0),
            .deviation = std::sqrt(1 / precision_),
            .degrees = static_cast<double>(rows_.size()) - static_cast<double>(kept.size()) + kPriorWeight,
            .covariance = {covariance(0, 0), covariance(0, 1), covariance(1, 1)}};
  }

  Rows rows_;
  bool scale_;
  bool fixed_;
  double shortest_s_;
  double usual_;       // deviation
  Matrix deviations_;  // 2 x number of terms: of log(scale) and fixed_s
  bool valid_ = true;
  Matrix normal_;
  Terms right_;
  double squares_ = 0;
  double precision_ = 0;  // mean of 1 / deviation^2 of the measurements
  Terms mean_;
  Matrix covariance_;
};

// Least squares of relative errors with one term: 1 = scale x predicted / measured, or 1 - predicted / measured =
// fixed / measured.
Correction least_squares(Rows rows, bool fixed) {
  double numerator = 0;
  double denominator = 0;
  for (const auto& [predicted, measured] : rows) {
    const double slope = (fixed ? 1 : predicted) / measured;
    numerator += slope * (fixed ? 1 - predicted / measured : 1);
    denominator += slope * slope;
  }
  const double found = numerator / denominator;
  Correction out{.scale = fixed ? 1 : found, .fixed_s = fixed ? found : 0, .shortest_s = shortest_s(rows)};
  if (out.scale * out.shortest_s + out.fixed_s <= 0) {
    throw InputError(fmt::format(
        "calibrate: the fixed time is {:.3g} s, but a predicted iteration takes only {:.3g} s: fit a scale instead",
        found, out.shortest_s));
  }
  double squares = kPriorWeight * std::pow(usual_deviation(rows), 2);
  for (const auto& [predicted, measured] : rows) {
    squares += std::pow((out.scale * predicted + out.fixed_s) / measured - 1, 2);
  }
  out.measurements = static_cast<int>(rows.size());
  out.degrees = static_cast<double>(rows.size()) - 1 + kPriorWeight;
  const double variance = squares / out.degrees;
  out.deviation = std::sqrt(variance);
  out.covariance[fixed ? 2 : 0] = variance / denominator;
  return out;
}

// The rows without those of a fold, and those.
struct Fold {
  std::vector<PredictedAndMeasured> others;
  std::vector<std::size_t> left_out;
};

std::vector<Fold> folds(Rows rows) {
  std::vector<Fold> out(std::min(rows.size(), kMostFolds));
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (std::size_t fold = 0; fold < out.size(); ++fold) {
      if (row % out.size() == fold) {
        out[fold].left_out.push_back(row);
      } else {
        out[fold].others.push_back(rows[row]);
      }
    }
  }
  return out;
}

template <typename Fit>
std::vector<double> held_out_errors(Rows rows, const Fit& fit) {
  std::vector<double> out(rows.size());
  for (const Fold& fold : folds(rows)) {
    const Correction correction = fit(fold.others);
    for (const std::size_t row : fold.left_out) {
      out[row] = correction.at(rows[row].predicted_s).seconds / rows[row].measured_s - 1;
    }
  }
  return out;
}

double root_mean_square(const std::vector<double>& errors) {
  double squares = 0;
  for (const double error : errors) squares += error * error;
  return std::sqrt(squares / static_cast<double>(errors.size()));
}

double uncorrected_error(Rows rows) {
  std::vector<double> errors;
  for (const auto& [predicted, measured] : rows) errors.push_back(predicted / measured - 1);
  return root_mean_square(errors);
}

Correction shrunken(Rows rows) {
  const ShrunkenFit only_scale(rows, true, false);
  if (rows.size() < kFewestForFixed) return only_scale.kept();
  Correction best = only_scale.nothing();
  double least = uncorrected_error(rows);
  for (const auto& [scale, fixed] : {std::pair(true, false), {false, true}, {true, true}}) {
    const auto fit = [scale = scale, fixed = fixed](Rows of) {
      const ShrunkenFit found(of, scale, fixed);
      return found.valid() ? found.kept() : ShrunkenFit(of, true, false).nothing();
    };
    const double error = root_mean_square(held_out_errors(rows, fit));
    if (error >= least) continue;
    least = error;
    best = fit(rows);
  }
  return best;
}

// Without the held-out error.
Correction fit_once(Rows rows, CorrectionTerms terms) {
  if (rows.empty()) throw InputError("calibrate: expected at least one measured iteration");
  for (const PredictedAndMeasured& row : rows) {
    if (!(row.predicted_s > 0 && row.measured_s > 0)) throw InputError("calibrate: expected times above 0");
  }
  return terms == CorrectionTerms::automatic ? shrunken(rows) : least_squares(rows, terms == CorrectionTerms::fixed);
}

}  // namespace

Correction fit_correction(std::span<const PredictedAndMeasured> rows, CorrectionTerms terms) {
  Correction out = fit_once(rows, terms);
  const std::vector<double> errors = left_out_errors(rows, terms);
  if (errors.empty()) return out;
  out.held_out = root_mean_square(errors);
  out.held_out_before = uncorrected_error(rows);
  return out;
}

std::vector<double> left_out_errors(std::span<const PredictedAndMeasured> rows, CorrectionTerms terms) {
  if (rows.size() < 2) return {};
  return held_out_errors(rows, [terms](Rows others) { return fit_once(others, terms); });
}

}  // namespace sluice::sim
