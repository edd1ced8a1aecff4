#include "model/slicing/algorithm1.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() / 4;
constexpr std::int64_t kMaxGranules = 16384;

// t_fwd of all slices, stored where the dynamic program reads it: by the end of the slice, then by its length.
class Table {
 public:
  explicit Table(const SlicingProblem& problem) : granules_(problem.forward.granules()) {
    if (granules_ > kMaxGranules) {
      throw InputError(fmt::format("expected at most {} granules for Algorithm 1, got {}", kMaxGranules, granules_));
    }
    times_.resize(granules_ * (granules_ + 1) / 2);
    std::vector<Duration> row;
    for (std::int64_t begin = 0; begin < granules_; ++begin) {
      row.resize(granules_ - begin);
      add(problem.forward, begin, row);
      if (problem.backward) add(*problem.backward, begin, row);
    }
  }

  // The slice of `length` granules that ends after `end` granules.
  std::int64_t operator()(std::int64_t length, std::int64_t end) const {
    return times_[end * (end - 1) / 2 + length - 1];
  }
  const std::vector<std::int64_t>& times() const { return times_; }
  std::int64_t granules() const { return granules_; }

 private:
  void add(const SliceTimes& times, std::int64_t begin, std::vector<Duration>& row) {
    times.row(begin * times.granularity, row);
    for (std::int64_t n = 0; n < std::ssize(row); ++n) {
      const std::int64_t end = begin + n + 1;
      times_[end * (end - 1) / 2 + n] += row[n].count();
    }
  }

  std::int64_t granules_;
  std::vector<std::int64_t> times_;
};

// Algorithm 1: S*(i; t_max) = min over k of S*(i - k; t_max) + t_fwd(k, i - k), k the last slice's length.
void least_sums(const Table& table, std::int64_t longest, std::vector<std::int64_t>& sums,
                std::vector<std::int64_t>& last) {
  for (std::int64_t i = 1; i <= table.granules(); ++i) {
    std::int64_t least = kNever;
    for (std::int64_t k = 1; k <= i; ++k) {
      const std::int64_t time = table(k, i);
      if (time > longest) continue;
      const std::int64_t sum = sums[i - k] + time;
      if (sum < least) {
        least = sum;
        last[i] = k;
      }
    }
    sums[i] = least;
  }
}

}  // namespace

SlicePlan algorithm1_slices(const SlicingProblem& problem, Duration epsilon) {
  check_problem(problem);
  const Table table(problem);
  const std::int64_t granules = table.granules();
  std::vector<std::int64_t> values = table.times();
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());

  std::vector<std::int64_t> sums(to_size(granules + 1), 0), last(to_size(granules + 1), 0), lengths;
  std::int64_t best = kNever, lower_bound = kNever, sweeps = 0;
  auto tried = values.cend();
  const auto attempt = [&](std::vector<std::int64_t>::const_iterator value) {
    least_sums(table, *value, sums, last);
    ++sweeps;
    if (sums.back() < kNever) {
      // A maximum above the last one tried is at least the value next to it.
      const std::int64_t shortest = tried == values.cend() ? values.front() : *(tried + 1);
      lower_bound = std::min(lower_bound, sums.back() + (problem.num_cells - 1) * shortest);
      const std::int64_t latency = sums.back() + (problem.num_cells - 1) * *value;
      if (latency < best) {
        best = latency;
        lengths.clear();
        for (std::int64_t end = granules; end > 0; end -= last[end]) lengths.push_back(last[end]);
      }
    }
    tried = value;
  };
  for (auto value = values.cbegin(); value != values.cend() && problem.num_cells * *value <= best; ++value) {
    if (tried == values.cend() || *value >= *tried + epsilon.count()) attempt(value);
  }
  // With an epsilon as large as the times themselves, the tried values may not allow any cut.
  if (lengths.empty()) attempt(values.cend() - 1);
  // Maxima above the last one tried: K t_max is a bound for each of them.
  if (tried + 1 != values.cend()) lower_bound = std::min(lower_bound, problem.num_cells * *(tried + 1));

  SlicePlan plan{.sweeps = sweeps};
  std::int64_t begin = 0;
  for (auto length = lengths.rbegin(); length != lengths.rend(); begin += *length++) {
    plan.lengths.push_back(problem.forward.position(begin + *length) - problem.forward.position(begin));
  }
  plan.latency = pipeline_latency(problem, plan.lengths);
  plan.lower_bound = std::min(plan.latency, Duration{lower_bound});
  return plan;
}

}  // namespace sluice::model
