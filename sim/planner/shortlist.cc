#include "sim/planner/shortlist.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <random>

namespace sluice::sim {
namespace {

constexpr int kSamples = 1024;
constexpr std::size_t kMostCandidates = 1024;
// Candidates slower than the predicted fastest by more standard deviations are never the measured fastest.
constexpr double kMostDeviations = 6;

// Sampled logarithms of the measured times of candidates.
class Samples {
 public:
  Samples(std::span<const Candidate> candidates, std::span<const int> order, const ChoiceErrors& errors) {
    const double reach = kMostDeviations * std::sqrt(2) * std::hypot(errors.group, errors.own);
    std::vector<double> predicted;
    std::vector<int> group_of;
    std::map<int, int> groups;
    for (const int index : order.first(std::min(order.size(), kMostCandidates))) {
      const double time = std::log(candidates[index].predicted_s);
      if (!predicted.empty() && time > predicted.front() + reach) break;
      predicted.push_back(time);
      group_of.push_back(groups.try_emplace(candidates[index].group, static_cast<int>(groups.size())).first->second);
    }
    count_ = predicted.size();
    std::mt19937_64 engine(1);
    std::normal_distribution<double> normal;
    std::vector<double> shared(groups.size());
    times_.resize(kSamples * count_);
    for (int sample = 0; sample < kSamples; ++sample) {
      for (double& one : shared) one = errors.group * normal(engine);
      for (std::size_t i = 0; i < count_; ++i) {
        times_[i * kSamples + sample] = predicted[i] + shared[group_of[i]] + errors.own * normal(engine);
      }
    }
  }

  std::size_t count() const { return count_; }
  std::span<const double> of(std::size_t candidate) const {
    return std::span(times_).subspan(candidate * kSamples, kSamples);
  }

 private:
  std::size_t count_ = 0;
  std::vector<double> times_;  // by candidate and sample
};

void take_minimum(std::span<const double> times, std::vector<double>& least) {
  for (std::size_t sample = 0; sample < kSamples; ++sample) least[sample] = std::min(least[sample], times[sample]);
}

// Returns by how much a candidate lowers the sum of the least times.
double gain_of(std::span<const double> times, const std::vector<double>& least) {
  double gain = 0;
  for (std::size_t sample = 0; sample < kSamples; ++sample) gain += std::max(0.0, least[sample] - times[sample]);
  return gain;
}

}  // namespace

Shortlist shortlist(std::span<const Candidate> candidates, int size, const ChoiceErrors& errors) {
  std::vector<int> order(candidates.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return candidates[a].predicted_s < candidates[b].predicted_s; });
  const Samples samples(candidates, order, errors);
  const std::size_t wanted = std::min(order.size(), static_cast<std::size_t>(std::max(0, size)));
  Shortlist out;
  std::vector<char> taken(order.size());
  std::vector<double> least(kSamples, INFINITY);
  const auto take = [&](std::size_t place) {
    out.chosen.push_back(order[place]);
    taken[place] = 1;
    if (place < samples.count()) take_minimum(samples.of(place), least);
  };
  if (wanted > 0) take(0);
  while (out.chosen.size() < std::min(wanted, samples.count())) {
    std::size_t best = order.size();
    double most = 0;
    for (std::size_t place = 0; place < samples.count(); ++place) {
      const double gain = taken[place] != 0 ? 0 : gain_of(samples.of(place), least);
      if (gain <= most) continue;
      most = gain;
      best = place;
    }
    if (best == order.size()) break;
    take(best);
  }
  std::vector<double> fastest = least;
  for (std::size_t place = 0; place < samples.count(); ++place) take_minimum(samples.of(place), fastest);
  int hits = 0;
  for (std::size_t sample = 0; sample < kSamples && wanted > 0; ++sample) {
    hits += least[sample] <= fastest[sample] ? 1 : 0;
    out.loss += std::expm1(least[sample] - fastest[sample]) / kSamples;
  }
  out.probability = static_cast<double>(hits) / kSamples;
  for (std::size_t place = 0; out.chosen.size() < wanted; ++place) {
    if (taken[place] == 0) out.chosen.push_back(order[place]);
  }
  return out;
}

}  // namespace sluice::sim
