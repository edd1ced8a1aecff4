#include "sim/calibration/correction_fit.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <charconv>

#include "model/errors.h"
#include "model/input/files.h"

namespace sluice::sim {
namespace {

constexpr double kUsualWeight = 2;     // number of measurements that kUsualDeviation counts as
constexpr double kLeastSpread = 1.05;  // ratio of predictions from which a fixed time is fitted

// Weighted least squares of 1 = scale x predicted / measured + fixed / measured.
struct Line {
  double scale = 1;
  double fixed_s = 0;
  int parameters = 1;
  double squares = 0;       // of relative residuals
  Eigen::Matrix2d inverse;  // of the normal matrix
};

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

}  // namespace

Correction fit_correction(std::span<const PredictedAndMeasured> rows) {
  if (rows.empty()) throw InputError("calibrate: expected at least one measured iteration");
  double least = rows[0].predicted_s;
  double most = least;
  for (const PredictedAndMeasured& row : rows) {
    if (!(row.predicted_s > 0 && row.measured_s > 0)) throw InputError("calibrate: expected times above 0");
    least = std::min(least, row.predicted_s);
    most = std::max(most, row.predicted_s);
  }
  const bool apart = rows.size() > 1 && most >= kLeastSpread * least;
  Line line = fit_line(rows, apart);
  // A negative fixed time or scale has no meaning.
  if (apart && (line.fixed_s < 0 || line.scale <= 0)) line = fit_line(rows, false);

  const double degrees = static_cast<double>(rows.size()) - line.parameters;
  const double squares = line.squares + kUsualWeight * kUsualDeviation * kUsualDeviation;
  const double variance = squares / (degrees + kUsualWeight);
  return {.scale = line.scale,
          .fixed_s = line.fixed_s,
          .measurements = static_cast<int>(rows.size()),
          .deviation = std::sqrt(variance),
          .degrees = degrees + kUsualWeight,
          .covariance = {variance * line.inverse(0, 0), variance * line.inverse(0, 1), variance * line.inverse(1, 1)}};
}

std::vector<double> left_out_errors(std::span<const PredictedAndMeasured> rows) {
  std::vector<double> out;
  if (rows.size() < 2) return out;
  for (std::size_t left = 0; left < rows.size(); ++left) {
    std::vector<PredictedAndMeasured> others(rows.begin(), rows.end());
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(left));
    out.push_back(fit_correction(others).at(rows[left].predicted_s).seconds / rows[left].measured_s - 1);
  }
  return out;
}

std::vector<double> read_megatron_log(const std::string& path) {
  constexpr std::string_view kMark = "elapsed time per iteration (ms):";
  const std::string text = read_file(path, std::int64_t{1} << 30);
  std::vector<double> seconds;
  for (std::size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at)) {
    at = std::min(text.find_first_not_of(' ', at + kMark.size()), text.size());
    double milliseconds = 0;
    const auto [rest, error] = std::from_chars(text.data() + at, text.data() + text.size(), milliseconds);
    if (error != std::errc() || !(milliseconds > 0 && milliseconds < 1e10)) {
      const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1;
      throw InputError(fmt::format("{}: line {}: expected milliseconds after '{}'", path, line, kMark));
    }
    seconds.push_back(milliseconds / 1e3);
  }
  if (seconds.empty()) {
    throw InputError(fmt::format("{}: expected a table (.csv), or a log with lines '{} ...'", path, kMark));
  }
  return seconds;
}

}  // namespace sluice::sim
