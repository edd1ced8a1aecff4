#include "sim/calibration/constants.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "model/cost/analytic.h"
#include "model/cost/price.h"
#include "model/errors.h"
#include "model/input/nearest.h"
#include "model/scenario/setup.h"
#include "sim/engine.h"
#include "sim/parallel.h"

namespace sluice {
namespace {

// A row made ready: its graph is lowered once, and priced anew for every set of constants.
class Row {
 public:
  Row(const MeasuredIteration& measured, int table, double weight)
      : seconds_(measured.seconds), table_(table), weight_(weight), setup_(measured.scenario) {}

  double weight() const { return weight_; }

  // log(predicted / measured).
  double residual(std::span<const Constant> constants, const Eigen::VectorXd& values) const {
    const Scenario& scenario = setup_.scenario();
    Cluster cluster = *scenario.cluster;
    Software software = scenario.software;
    for (std::size_t i = 0; i < constants.size(); ++i) {
      if (constants[i].table >= 0 && constants[i].table != table_) continue;
      constants[i].value(cluster, software) = values[static_cast<Eigen::Index>(i)];
    }
    const AnalyticCost cost(*scenario.model, scenario.training, setup_.stages(), std::move(cluster),
                            std::move(software));
    const Prices prices = price(setup_.graph(), cost);
    const Timeline timeline = simulate(setup_.graph(), prices);
    const Duration end = *std::max_element(timeline.end.begin(), timeline.end.end());
    return std::log(to_seconds(end) / seconds_);
  }

 private:
  double seconds_;
  int table_;
  double weight_;
  Setup setup_;
};

using Rows = std::vector<std::unique_ptr<Row>>;

// The least-squares problem of some of the rows, in the logarithms of the constants.
class Problem {
 public:
  Problem(const Rows& rows, std::vector<std::size_t> chosen, std::span<const Constant> constants,
          const ConstantsFitOptions& options)
      : rows_(rows), chosen_(std::move(chosen)), constants_(constants), options_(options) {}

  Eigen::VectorXd solve() const {
    const auto n = static_cast<Eigen::Index>(constants_.size());
    Eigen::VectorXd x(n);
    for (Eigen::Index i = 0; i < n; ++i) x[i] = std::log(constant(i).typical);
    x = bounded(x);
    Eigen::VectorXd residuals = residuals_at(x);
    double loss = loss_of(residuals, x);
    double damping = 1e-3;
    for (int step = 0; step < options_.most_steps; ++step) {
      const Eigen::MatrixXd jacobian = jacobian_at(x, residuals);
      // Huber's loss as weights: beyond the tolerance an error counts by its size, not its square.
      Eigen::VectorXd weights(residuals.size());
      for (Eigen::Index i = 0; i < residuals.size(); ++i) {
        weights[i] = weight(i) * std::min(1.0, options_.tolerance / std::max(1e-12, std::abs(residuals[i])));
      }
      Eigen::MatrixXd normal = jacobian.transpose() * weights.asDiagonal() * jacobian;
      Eigen::VectorXd gradient = jacobian.transpose() * weights.cwiseProduct(residuals);
      for (Eigen::Index i = 0; i < n; ++i) {
        normal(i, i) += prior(i);
        gradient[i] += prior(i) * (x[i] - std::log(constant(i).typical));
      }
      bool better = false;
      double change = 0;
      for (int attempt = 0; attempt < 8 && !better; ++attempt) {
        Eigen::MatrixXd damped = normal;
        damped.diagonal() *= 1 + damping;
        const Eigen::VectorXd next = bounded(x - damped.ldlt().solve(gradient));
        const Eigen::VectorXd there = residuals_at(next);
        const double loss_there = loss_of(there, next);
        better = loss_there < loss;
        damping = std::clamp(better ? damping / 4 : damping * 6, 1e-9, 1e9);
        if (!better) continue;
        change = loss - loss_there;
        x = next;
        residuals = there;
        loss = loss_there;
      }
      if (!better || change < 1e-7 * loss) break;
    }
    return x;
  }

 private:
  const Constant& constant(Eigen::Index i) const { return constants_[static_cast<std::size_t>(i)]; }
  // The tolerance is the unit of a row's error, as the spread is that of a constant's.
  double prior(Eigen::Index i) const {
    const double unit = options_.tolerance / constant(i).spread;
    return options_.prior_weight * unit * unit;
  }

  double weight(Eigen::Index i) const { return rows_[chosen_[static_cast<std::size_t>(i)]]->weight(); }

  Eigen::VectorXd bounded(Eigen::VectorXd x) const {
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      x[i] = std::clamp(x[i], std::log(constant(i).low), std::log(constant(i).high));
    }
    return x;
  }

  Eigen::VectorXd residuals_at(const Eigen::VectorXd& x) const {
    const Eigen::VectorXd values = x.array().exp();
    Eigen::VectorXd out(static_cast<Eigen::Index>(chosen_.size()));
    parallel_for(std::ssize(chosen_), [&](std::int64_t i) {
      out[i] = rows_[chosen_[static_cast<std::size_t>(i)]]->residual(constants_, values);
    });
    return out;
  }

  Eigen::MatrixXd jacobian_at(const Eigen::VectorXd& x, const Eigen::VectorXd& residuals) const {
    constexpr double kStep = 1e-3;
    Eigen::MatrixXd out(residuals.size(), x.size());
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      Eigen::VectorXd aside = x;
      const double step = x[i] + kStep <= std::log(constant(i).high) ? kStep : -kStep;
      aside[i] += step;
      out.col(i) = (residuals_at(aside) - residuals) / step;
    }
    return out;
  }

  double loss_of(const Eigen::VectorXd& residuals, const Eigen::VectorXd& x) const {
    const double k = options_.tolerance;
    double sum = 0;
    for (Eigen::Index i = 0; i < residuals.size(); ++i) {
      const double r = std::abs(residuals[i]);
      sum += weight(i) * (r <= k ? r * r / 2 : k * (r - k / 2));
    }
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      const double off = x[i] - std::log(constant(i).typical);
      sum += prior(i) * off * off / 2;
    }
    return sum;
  }

  const Rows& rows_;
  std::vector<std::size_t> chosen_;
  std::span<const Constant> constants_;
  const ConstantsFitOptions& options_;
};

// FNV-1a: the same on every machine.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash ^ (hash >> 29U);
}

}  // namespace

const std::vector<Constant>& fittable_constants() {
  static const std::vector<Constant> constants = {
      {"gpu/memory_efficiency", 0.2, 1, 0.75, 0.2,
       [](Cluster& c, Software&) -> double& { return c.gpu.memory_efficiency; }},
      {"gpu/gemm/peak_fraction", 0.3, 1, 0.894, 0.05,
       [](Cluster& c, Software&) -> double& { return c.gpu.gemm.peak_fraction; }},
      {"gpu/attention_forward/peak_fraction", 0.3, 1, 0.8, 0.1,
       [](Cluster& c, Software&) -> double& { return c.gpu.attention_forward.peak_fraction; }},
      {"gpu/attention_backward/peak_fraction", 0.3, 1, 0.65, 0.1,
       [](Cluster& c, Software&) -> double& { return c.gpu.attention_backward.peak_fraction; }},
      {"gpu/kernel_s", 1e-7, 2e-5, 2.1e-6, 0.3, [](Cluster& c, Software&) -> double& { return c.gpu.kernel_s; }},
      {"intra_node/collective_efficiency", 0.1, 1, 0.74, 0.1,
       [](Cluster& c, Software&) -> double& { return c.intra_node.collective_efficiency; }},
      {"intra_node/collective_latency_s", 1e-6, 1e-3, 3.5e-5, 0.5,
       [](Cluster& c, Software&) -> double& { return c.intra_node.collective_latency_s; }},
      {"inter_node/collective_efficiency", 0.1, 1, 0.8, 0.3,
       [](Cluster& c, Software&) -> double& { return c.inter_node.collective_efficiency; }},
      {"inter_node/transfer_efficiency", 0.1, 1, 0.8, 0.3,
       [](Cluster& c, Software&) -> double& { return c.inter_node.transfer_efficiency; }},
      {"inter_node/latency_s", 1e-6, 1e-1, 2e-5, 2,
       [](Cluster& c, Software&) -> double& { return c.inter_node.latency_s; }},
      {"software/issue_s", 1e-6, 1e-3, 6e-5, 0.5, [](Cluster&, Software& s) -> double& { return s.issue_s; }},
      {"software/gemm_speed", 0.5, 2, 1.4, 0.3, [](Cluster&, Software& s) -> double& { return s.gemm_speed; }},
      {"software/transfer_s", 1e-6, 1e-1, 1e-4, 2, [](Cluster&, Software& s) -> double& { return s.transfer_s; }},
      {"software/step_s", 1e-5, 10, 2e-3, 2, [](Cluster&, Software& s) -> double& { return s.step_s; }},
  };
  return constants;
}

const Constant& find_constant(const std::string& name) {
  std::vector<std::string> names;
  for (const Constant& constant : fittable_constants()) {
    if (constant.name == name) return constant;
    names.push_back(constant.name);
  }
  throw InputError(fmt::format("there is no constant '{}'{}", name, did_you_mean(name, names)));
}

ErrorSummary summarize(std::span<const double> relative_errors) {
  ErrorSummary out;
  if (relative_errors.empty()) return out;
  std::vector<double> sizes;
  for (const double error : relative_errors) {
    sizes.push_back(std::abs(error));
    out.mean += std::abs(error);
    out.signed_mean += error;
  }
  std::sort(sizes.begin(), sizes.end());
  const auto n = static_cast<double>(sizes.size());
  out.mean /= n;
  out.signed_mean /= n;
  out.median = (sizes[(sizes.size() - 1) / 2] + sizes[sizes.size() / 2]) / 2;
  out.worst = sizes.back();
  return out;
}

ConstantsFit fit_constants(std::span<const MeasuredTable> tables, std::span<const Constant> constants,
                           const ConstantsFitOptions& options) {
  Rows ready;
  std::vector<std::uint64_t> hashes;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    for (const MeasuredIteration& measured : tables[t].rows) {
      const double weight = 1 / std::sqrt(static_cast<double>(tables[t].rows.size()));
      ready.push_back(std::make_unique<Row>(measured, static_cast<int>(t), weight));
      hashes.push_back(hash_of(tables[t].name + measured.setting));
    }
  }
  if (std::ssize(ready) < std::max(1, options.folds)) {
    throw InputError(fmt::format("{} measured iterations are fewer than {} folds", ready.size(), options.folds));
  }
  std::vector<std::size_t> all(ready.size());
  std::iota(all.begin(), all.end(), std::size_t{0});

  const auto relative = [&](std::size_t row, const Eigen::VectorXd& x) {
    return std::expm1(ready[row]->residual(constants, x.array().exp()));
  };
  // Rows one after the other, cut into tables again.
  const auto by_table = [&](const std::vector<double>& errors) {
    std::vector<std::vector<double>> out;
    auto at = errors.begin();
    for (const MeasuredTable& table : tables) {
      out.emplace_back(at, at + std::ssize(table.rows));
      at += std::ssize(table.rows);
    }
    return out;
  };
  ConstantsFit fit;
  const Eigen::VectorXd best = Problem(ready, all, constants, options).solve();
  for (const double x : best) fit.values.push_back(std::exp(x));
  std::vector<double> errors;
  for (const std::size_t row : all) errors.push_back(relative(row, best));
  fit.errors = by_table(errors);
  if (options.folds == 0) return fit;

  // Dealt in the order of the hashes, so that folds are of one size.
  std::vector<std::size_t> dealt = all;
  std::stable_sort(dealt.begin(), dealt.end(), [&](std::size_t a, std::size_t b) { return hashes[a] < hashes[b]; });
  std::vector<double> held_out(ready.size());
  fit.deviations.assign(constants.size(), 0);
  for (int fold = 0; fold < options.folds; ++fold) {
    std::vector<std::size_t> kept;
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < dealt.size(); ++i) {
      (static_cast<int>(i * static_cast<std::size_t>(options.folds) / dealt.size()) == fold ? out : kept)
          .push_back(dealt[i]);
    }
    const Eigen::VectorXd without = Problem(ready, kept, constants, options).solve();
    for (const std::size_t row : out) held_out[row] = relative(row, without);
    for (std::size_t i = 0; i < constants.size(); ++i) {
      const double off = without[static_cast<Eigen::Index>(i)] - best[static_cast<Eigen::Index>(i)];
      fit.deviations[i] += off * off / options.folds;
    }
  }
  fit.held_out = by_table(held_out);
  for (double& deviation : fit.deviations) deviation = std::sqrt(deviation);
  return fit;
}

}  // namespace sluice
