#pragma once

#include <vector>

#include "traces/profile/gpu_trace.h"

namespace sluice::traces {

// How a GPU spent its time. Times of several streams count once: each is the length of a union of intervals. compute,
// exposed_communication, exposed_copies and idle add up to span. In the temporal breakdown of Holistic Trace Analysis,
// compute and idle are its compute_time and idle_time, and exposed_communication plus exposed_copies its
// non_compute_time.
struct Breakdown {
  Duration span{};
  Duration compute{};  // of kernels that are neither communication nor copies
  Duration communication{};
  Duration exposed_communication{};  // beside no compute
  Duration copies{};
  Duration exposed_copies{};  // beside neither compute nor communication
  Duration idle{};
  Duration idle_for_host{};  // idle before a kernel that was not launched yet

  Duration hidden_communication() const { return communication - exposed_communication; }
  Breakdown& operator+=(const Breakdown& other);
};

// Adds up intervals in ascending order of their starts.
class BreakdownSum {
 public:
  explicit BreakdownSum(Duration begin) : begin_(begin) {}
  // `launched`: Duration::min() if unknown.
  void add(GpuKernelClass kind, Duration start, Duration end, Duration launched);
  // Of the time from `begin` to `end`, which is not before the end of any interval. `launched`: of the kernel that
  // starts then; Duration::min(): none or unknown.
  Breakdown until(Duration end, Duration launched = Duration::min()) const;

 private:
  // The union of the intervals added so far.
  struct Union {
    Duration length{};
    Duration end = Duration::min();
    void add(Duration from, Duration to);
  };

  // Of the idle time until a kernel starts, the part until it was launched.
  Duration waiting_for_host(Duration start, Duration launched) const;

  Duration begin_;
  Duration idle_for_host_{};
  Union compute_;
  Union communication_;
  Union copies_;
  Union compute_or_communication_;
  Union all_;
};

// The breakdown of each step of a trace: of what its kernels do between its begin and its end.
std::vector<Breakdown> breakdowns(const GpuTrace& trace);

}  // namespace sluice::traces
