#include "sim/calibration/log_fit.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "sim/engine/parallel.h"

namespace sluice::sim {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kNoise = 0.1;     // relative error of a measured time, against which priors are weighed
constexpr double kSquared = 0.05;  // errors beyond this count linearly

class Problem {
 public:
  Problem(std::span<const FitConstant> constants, const FitModel& predict, std::span<const double> measured,
          std::vector<int> rows, const LogFitOptions& options)
      : constants_(constants), predict_(predict), measured_(measured), rows_(std::move(rows)), options_(options) {}

  const LogFitOptions& options() const { return options_; }

  Eigen::Index num_constants() const { return static_cast<Eigen::Index>(constants_.size()); }
  const FitConstant& constant(Eigen::Index i) const { return constants_[i]; }

  // Residuals of the rows, then of the priors, in units of kNoise.
  VectorXd residuals(const VectorXd& logs) const {
    std::vector<double> values;
    for (Eigen::Index i = 0; i < logs.size(); ++i) values.push_back(std::exp(logs[i]));
    const auto num_rows = static_cast<Eigen::Index>(rows_.size());
    VectorXd out(num_rows + logs.size());
    const auto residual = [&](std::int64_t i) {
      const int row = rows_[i];
      out[i] = std::log(predict_(values, row) / measured_[row]) / kNoise;
    };
    if (options_.parallel) {
      parallel_for(num_rows, residual);
    } else {
      for (Eigen::Index i = 0; i < num_rows; ++i) residual(i);
    }
    for (Eigen::Index i = 0; i < logs.size(); ++i) {
      out[num_rows + i] = (logs[i] - std::log(constant(i).guess)) / constant(i).spread;
    }
    return out;
  }

  // Weights that make squares of large errors linear; priors stay squared.
  VectorXd weights(const VectorXd& residuals) const {
    VectorXd out = VectorXd::Ones(residuals.size());
    for (Eigen::Index i = 0; i < static_cast<Eigen::Index>(rows_.size()); ++i) {
      const double x = residuals[i] * kNoise / kSquared;
      out[i] = weight(i) / std::sqrt(1 + x * x);
    }
    return out;
  }

  double loss(const VectorXd& residuals) const {
    double sum = 0;
    constexpr double kScale = kSquared / kNoise;
    for (Eigen::Index i = 0; i < residuals.size(); ++i) {
      const double x = residuals[i] / kScale;
      const bool row = i < static_cast<Eigen::Index>(rows_.size());
      sum += row ? weight(i) * 2 * kScale * kScale * (std::sqrt(1 + x * x) - 1) : residuals[i] * residuals[i];
    }
    return sum;
  }

  VectorXd clamped(VectorXd logs) const {
    for (Eigen::Index i = 0; i < logs.size(); ++i) {
      logs[i] = std::clamp(logs[i], std::log(constant(i).low), std::log(constant(i).high));
    }
    return logs;
  }

 private:
  double weight(Eigen::Index i) const {
    if (options_.weights.empty()) return 1;
    return options_.weights[rows_[i]];
  }

  std::span<const FitConstant> constants_;
  const FitModel& predict_;
  std::span<const double> measured_;
  std::vector<int> rows_;
  const LogFitOptions& options_;
};

MatrixXd jacobian(const Problem& problem, const VectorXd& logs, const VectorXd& residuals) {
  MatrixXd out(residuals.size(), logs.size());
  for (Eigen::Index i = 0; i < logs.size(); ++i) {
    // Steps of 2 %, as wave quantization makes the model a step function.
    VectorXd moved = logs;
    const double step = moved[i] + 0.02 > std::log(problem.constant(i).high) ? -0.02 : 0.02;
    moved[i] += step;
    out.col(i) = (problem.residuals(moved) - residuals) / step;
  }
  return out;
}

struct Found {
  VectorXd logs;
  double loss = std::numeric_limits<double>::infinity();
};

Found descend(const Problem& problem, VectorXd logs) {
  VectorXd residuals = problem.residuals(logs);
  double loss = problem.loss(residuals);
  double damping = 1e-2;
  for (int round = 0; round < 100; ++round) {
    const MatrixXd slope = jacobian(problem, logs, residuals);
    const VectorXd weights = problem.weights(residuals);
    const MatrixXd normal = slope.transpose() * weights.asDiagonal() * slope;
    const VectorXd gradient = slope.transpose() * weights.asDiagonal() * residuals;
    bool moved = false;
    for (; damping < 1e8 && !moved; damping *= 5) {
      MatrixXd damped = normal;
      damped.diagonal() += damping * normal.diagonal();
      const VectorXd step = damped.ldlt().solve(-gradient).cwiseMin(1).cwiseMax(-1);
      const VectorXd next = problem.clamped(logs + step);
      const VectorXd there = problem.residuals(next);
      const double less = problem.loss(there);
      if (!(less < loss * (1 - 1e-7))) continue;
      logs = next;
      residuals = there;
      loss = less;
      moved = true;
    }
    if (!moved) break;
    damping = std::max(damping / 25, 1e-9);
  }
  return {.logs = logs, .loss = loss};
}

std::vector<double> best_constants(const Problem& problem) {
  Found best;
  for (const double start : {1.0, 0.5, 1.5}) {
    if (start != 1.0 && !problem.options().several_starts) break;
    VectorXd logs(problem.num_constants());
    for (Eigen::Index i = 0; i < logs.size(); ++i) logs[i] = std::log(problem.constant(i).guess * start);
    const Found found = descend(problem, problem.clamped(logs));
    if (found.loss < best.loss) best = found;
  }
  std::vector<double> out;
  for (Eigen::Index i = 0; i < best.logs.size(); ++i) out.push_back(std::exp(best.logs[i]));
  return out;
}

}  // namespace

FitErrors fit_errors(std::span<const double> predicted, std::span<const double> measured) {
  std::vector<double> errors;
  for (std::size_t i = 0; i < predicted.size(); ++i) errors.push_back(std::abs(predicted[i] / measured[i] - 1));
  std::sort(errors.begin(), errors.end());
  if (errors.empty()) return {};
  const std::size_t half = errors.size() / 2;
  return {.rows = static_cast<int>(errors.size()),
          .mean = std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(errors.size()),
          .median = errors.size() % 2 == 1 ? errors[half] : (errors[half - 1] + errors[half]) / 2,
          .worst = errors.back()};
}

LogFit fit_logarithms(std::span<const FitConstant> constants, const FitModel& predict, std::span<const double> measured,
                      std::span<const int> groups, const LogFitOptions& options) {
  const auto rows_where = [&](const auto& wanted) {
    std::vector<int> rows;
    for (std::size_t i = 0; i < measured.size(); ++i) {
      if (wanted(groups[i])) rows.push_back(static_cast<int>(i));
    }
    return rows;
  };
  LogFit out;
  out.constants = best_constants({constants, predict, measured, rows_where([](int) { return true; }), options});
  for (std::size_t i = 0; i < measured.size(); ++i) {
    out.predicted.push_back(predict(out.constants, static_cast<int>(i)));
  }
  out.in_sample = fit_errors(out.predicted, measured);
  out.predicted_held_out.resize(measured.size());
  std::vector<double> squares(constants.size(), 0);
  for (int fold = 0; fold < options.folds; ++fold) {
    const auto inside = [&](int group) { return group % options.folds == fold; };
    const std::vector<double> found =
        best_constants({constants, predict, measured, rows_where([&](int group) { return !inside(group); }), options});
    for (const int row : rows_where(inside)) {
      out.predicted_held_out[row] = predict(found, row);
    }
    for (std::size_t i = 0; i < squares.size(); ++i) {
      const double off = std::log(found[i] / out.constants[i]);
      squares[i] += off * off / options.folds;
    }
  }
  for (const double square : squares) out.deviations.push_back(std::sqrt(square));
  out.held_out = fit_errors(out.predicted_held_out, measured);
  return out;
}

}  // namespace sluice::sim
