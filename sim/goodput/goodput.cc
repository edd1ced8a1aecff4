#include "sim/goodput/goodput.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/engine/parallel.h"
#include "sim/goodput/closed_forms.h"

namespace sluice::sim {
namespace {

double fraction_of(Duration time, Duration wall) { return wall.count() > 0 ? to_seconds(time) / to_seconds(wall) : 0; }

double covariance(std::span<const double> x, std::span<const double> y) {
  if (x.size() < 2) return 0;
  const double count = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / count;
  const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / count;
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += (x[i] - mean_x) * (y[i] - mean_y);
  return sum / (count - 1);
}

Estimate estimate(std::span<const double> values) {
  const double count = static_cast<double>(values.size());
  return {std::accumulate(values.begin(), values.end(), 0.0) / count,
          std::sqrt(std::max(0.0, covariance(values, values)) / count)};
}

// The estimate of a mean with a control variate of mean 0.
Estimate controlled(std::span<const double> values, std::span<const double> control) {
  Estimate result = estimate(values);
  const double spread = covariance(control, control);
  if (spread <= 0 || values.size() < 30) return result;
  const double slope = covariance(values, control) / spread;
  result.mean -= slope * estimate(control).mean;
  const double rest = covariance(values, values) - slope * slope * spread;
  result.error = std::sqrt(std::max(0.0, rest) / static_cast<double>(values.size()));
  return result;
}

template <typename Value>
std::vector<double> values_of(const std::vector<TrialResult>& trials, const Value& value) {
  std::vector<double> values;
  values.reserve(trials.size());
  for (const TrialResult& trial : trials) values.push_back(value(trial));
  return values;
}

double productive(const TrialResult& trial) {
  return fraction_of(trial.of(TimeUse::useful) + trial.of(TimeUse::degraded) + trial.of(TimeUse::stragglers),
                     trial.wall);
}

// Searches where `value(log interval)` falls below `level`, from `inside` to `outside`.
template <typename Value>
double crossing(const Value& value, double level, double inside, double outside) {
  if (value(outside) >= level) return outside;
  for (int i = 0; i < 12; ++i) {
    const double middle = (inside + outside) / 2;
    (value(middle) >= level ? inside : outside) = middle;
  }
  return inside;
}

}  // namespace

double quantile(std::span<const double> ascending, double q) {
  const double at = q * static_cast<double>(ascending.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, ascending.size() - 1);
  return std::lerp(ascending[low], ascending[high], at - static_cast<double>(low));
}

GoodputSummary simulate_goodput(const GoodputRun& run, std::uint64_t seed, std::int64_t trials) {
  GoodputSummary summary;
  summary.trials.resize(static_cast<std::size_t>(trials));
  constexpr std::int64_t kTrialsOfBatch = 16;
  parallel_for((trials + kTrialsOfBatch - 1) / kTrialsOfBatch, [&](std::int64_t batch) {
    for (std::int64_t i = batch * kTrialsOfBatch; i < std::min(trials, (batch + 1) * kTrialsOfBatch); ++i) {
      summary.trials[static_cast<std::size_t>(i)] = simulate_trial(run, seed, static_cast<std::uint64_t>(i));
    }
  });
  const auto by = [&](const auto& value) { return values_of(summary.trials, value); };
  const std::vector<double> control = by([](const TrialResult& trial) {
    return (static_cast<double>(trial.exponential_failures) - trial.exposure_s) / std::max(1.0, to_seconds(trial.wall));
  });
  summary.goodputs = by([](const TrialResult& trial) { return fraction_of(trial.of(TimeUse::useful), trial.wall); });
  summary.walls_s = by([](const TrialResult& trial) { return to_seconds(trial.wall); });
  summary.goodput = controlled(summary.goodputs, control);
  summary.ettr = controlled(by(productive), control);
  summary.failures = estimate(by([](const TrialResult& trial) { return static_cast<double>(trial.failures); }));
  summary.wall_s = controlled(summary.walls_s, control);
  summary.finished = estimate(by([](const TrialResult& trial) { return trial.finished ? 1.0 : 0.0; })).mean;
  for (std::size_t use = 0; use < kTimeUses.size(); ++use) {
    summary.fractions[use] =
        estimate(by([use](const TrialResult& trial) { return fraction_of(trial.time[use], trial.wall); })).mean;
  }
  std::sort(summary.goodputs.begin(), summary.goodputs.end());
  std::sort(summary.walls_s.begin(), summary.walls_s.end());
  return summary;
}

IntervalSearch best_interval(const GoodputRun& run, Duration shortest, std::uint64_t seed, std::int64_t trials,
                             double tolerance) {
  GoodputRun tried = run;
  const auto duration = [&](double log) { return Duration{std::llround(std::exp(log))}; };
  const auto value = [&](double log) {
    tried.interval = std::max(shortest, duration(log));
    return simulate_goodput(tried, seed, trials).goodput.mean;
  };
  const double least = std::log(static_cast<double>(shortest.count()));
  const double most = std::max(least, std::log(static_cast<double>(run.horizon.count())));
  // A coarse pass, then the golden section beside its best.
  constexpr int kCoarse = 24;
  const double width = (most - least) / kCoarse;
  double at = least;
  double highest = -1;
  for (int i = 0; i <= kCoarse; ++i) {
    if (const double here = value(least + i * width); here > highest) {
      highest = here;
      at = least + i * width;
    }
  }
  double low = std::max(least, at - width);
  double high = std::min(most, at + width);
  constexpr double kGolden = 0.6180339887498949;
  for (int i = 0; i < 14; ++i) {
    const double left = high - kGolden * (high - low);
    const double right = low + kGolden * (high - low);
    const bool rises = value(left) < value(right);
    (rises ? low : high) = rises ? left : right;
  }
  IntervalSearch search;
  const double best = (low + high) / 2;
  search.goodput = value(best);
  search.best = std::max(shortest, duration(best));
  search.low = std::max(shortest, duration(crossing(value, search.goodput - tolerance, best, least)));
  search.high = duration(crossing(value, search.goodput - tolerance, best, most));
  return search;
}

int spares_for(GoodputRun run, double waiting, int most, std::uint64_t seed, std::int64_t trials) {
  const auto enough = [&](int spares) {
    run.spares = spares;
    return simulate_goodput(run, seed, trials).of(TimeUse::waiting) <= waiting;
  };
  int low = -1;  // not enough
  int high = 0;
  while (high < most && !enough(high)) {
    low = high;
    high = std::min(most, 2 * high + 1);
  }
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace sluice::sim
