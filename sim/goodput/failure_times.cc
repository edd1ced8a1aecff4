#include "sim/goodput/failure_times.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace sluice::sim {

constexpr double kNoFailure = std::numeric_limits<double>::infinity();

FailureTimes::FailureTimes(const std::vector<FailureCause>& causes, RandomStream random)
    : causes_(&causes), random_(random) {
  for (std::size_t i = 0; i < causes.size(); ++i) {
    const FailureCause& cause = causes[i];
    if (cause.failures_per_s() <= 0) continue;
    if (cause.between.kind == RandomTime::Kind::exponential) {
      rate_ += cause.failures_per_s();
      sums_.emplace_back(rate_, i);
    } else if (cause.between.kind == RandomTime::Kind::weibull) {
      const double aged = std::pow(cause.age_s / cause.between.weibull_scale(), cause.between.shape);
      cohorts_.push_back({i, cause.units, aged, 0});
      draw_first(cohorts_.back());
    } else {
      const auto units = static_cast<std::int64_t>(std::ceil(cause.units));
      for (std::int64_t unit = 0; unit < units; ++unit) renewals_.emplace(cause.between.draw(random_), i);
    }
  }
  for (std::size_t i = 0, guide = 0; guide < kGuides; ++guide) {
    while (i + 1 < sums_.size() && static_cast<double>(guide) / kGuides * rate_ > sums_[i].first) ++i;
    first_[guide] = i;
  }
  draw_exponential();
  find_next();
}

void FailureTimes::draw_exponential() {
  exponential_s_ = rate_ > 0 ? exponential_s_ + random_.exponential() / rate_ : kNoFailure;
}

void FailureTimes::draw_first(Cohort& cohort) {
  if (cohort.units < 1) {
    cohort.next_s = kNoFailure;
    return;
  }
  const FailureCause& cause = (*causes_)[cohort.cause];
  cohort.hazard += random_.exponential() / cohort.units;
  cohort.next_s = cause.between.weibull_scale() * std::pow(cohort.hazard, 1 / cause.between.shape) - cause.age_s;
}

void FailureTimes::find_next() {
  next_s_ = exponential_s_;
  if (!renewals_.empty()) next_s_ = std::min(next_s_, renewals_.top().first);
  for (const Cohort& cohort : cohorts_) next_s_ = std::min(next_s_, cohort.next_s);
}

bool FailureTimes::is_exponential(std::size_t cause) const {
  return (*causes_)[cause].between.kind == RandomTime::Kind::exponential;
}

std::size_t FailureTimes::take() {
  std::size_t cause = 0;
  if (next_s_ == exponential_s_) {
    const double at = random_.uniform() * rate_;
    std::size_t index = first_[std::min(kGuides - 1, static_cast<std::size_t>(at / rate_ * kGuides))];
    while (index + 1 < sums_.size() && at > sums_[index].first) ++index;
    cause = sums_[index].second;
    draw_exponential();
  } else {
    const auto first =
        std::find_if(cohorts_.begin(), cohorts_.end(), [&](const Cohort& cohort) { return cohort.next_s == next_s_; });
    if (first != cohorts_.end()) {
      cause = first->cause;
      first->units -= 1;
      draw_first(*first);
    } else {
      cause = renewals_.top().second;
      renewals_.pop();
    }
    renewals_.emplace(next_s_ + (*causes_)[cause].between.draw(random_), cause);
  }
  find_next();
  return cause;
}

}  // namespace sluice::sim
