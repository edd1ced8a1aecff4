#include "traces/profile/breakdown.h"

#include <algorithm>

#include "model/to_size.h"

namespace sluice::traces {

Breakdown& Breakdown::operator+=(const Breakdown& other) {
  for (Duration Breakdown::*time :
       {&Breakdown::span, &Breakdown::compute, &Breakdown::communication, &Breakdown::exposed_communication,
        &Breakdown::copies, &Breakdown::exposed_copies, &Breakdown::idle, &Breakdown::idle_for_host}) {
    this->*time += other.*time;
  }
  return *this;
}

void BreakdownSum::Union::add(Duration from, Duration to) {
  length += std::max(Duration::zero(), to - std::max(from, end));
  end = std::max(end, to);
}

void BreakdownSum::add(GpuKernelClass kind, Duration start, Duration end, Duration launched) {
  idle_for_host_ += waiting_for_host(start, launched);
  all_.add(start, end);
  if (kind == GpuKernelClass::copy) return copies_.add(start, end);
  compute_or_communication_.add(start, end);
  (is_compute(kind) ? compute_ : communication_).add(start, end);
}

Duration BreakdownSum::waiting_for_host(Duration start, Duration launched) const {
  const Duration busy_until = std::max(begin_, all_.end);
  if (launched == Duration::min() || start <= busy_until) return Duration::zero();
  return std::clamp(launched - busy_until, Duration::zero(), start - busy_until);
}

Breakdown BreakdownSum::until(Duration end, Duration launched) const {
  return {.span = end - begin_,
          .compute = compute_.length,
          .communication = communication_.length,
          .exposed_communication = compute_or_communication_.length - compute_.length,
          .copies = copies_.length,
          .exposed_copies = all_.length - compute_or_communication_.length,
          .idle = end - begin_ - all_.length,
          .idle_for_host = idle_for_host_ + waiting_for_host(end, launched)};
}

std::vector<Breakdown> breakdowns(const GpuTrace& trace) {
  std::vector<BreakdownSum> sums;
  for (const ProfiledStep& step : trace.steps) sums.emplace_back(step.begin);
  std::vector<Duration> launched(trace.steps.size(), Duration::min());  // of the kernel with which a step begins
  std::size_t first = 0;                                                // the step in which the kernel starts
  for (const GpuKernel& kernel : trace.kernels) {
    while (first + 1 < sums.size() && trace.steps[first].end <= kernel.start) ++first;
    if (kernel.step >= 0 && kernel.start == trace.steps[to_size(kernel.step)].begin) {
      launched[to_size(kernel.step)] = std::max(launched[to_size(kernel.step)], kernel.launched);
    }
    for (std::size_t at = first; at < sums.size() && trace.steps[at].begin <= kernel.end; ++at) {
      if (kernel.start > trace.steps[at].end) break;
      sums[at].add(trace.name_of(kernel).kind, std::max(kernel.start, trace.steps[at].begin),
                   std::min(kernel.end, trace.steps[at].end), kernel.launched);
    }
  }
  std::vector<Breakdown> out;
  for (std::size_t at = 0; at < sums.size(); ++at) {
    out.push_back(sums[at].until(trace.steps[at].end, at + 1 < sums.size() ? launched[at + 1] : Duration::min()));
  }
  return out;
}

}  // namespace sluice::traces
