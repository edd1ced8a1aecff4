#pragma once

#include <cstdint>

#include "model/namespaces.h"

namespace sluice::exec {

// Time that a thread was runnable but waited for a core, and how often it lost its core to another thread.
struct CoreWait {
  std::int64_t nanoseconds = 0;
  std::int64_t switches = 0;

  friend CoreWait operator-(const CoreWait& a, const CoreWait& b) {
    return {a.nanoseconds - b.nanoseconds, a.switches - b.switches};
  }
};

// Reads the waits of the thread that constructs it, from /proc/thread-self/schedstat and getrusage. Without these
// (other kernels), all waits are 0.
class CoreWaitMeter {
 public:
  CoreWaitMeter();
  ~CoreWaitMeter();
  CoreWaitMeter(const CoreWaitMeter&) = delete;
  CoreWaitMeter& operator=(const CoreWaitMeter&) = delete;

  // Since the thread began. Called by the same thread.
  CoreWait read() const;

 private:
  int file_;
};

// The fraction of a run above which waits for cores make its times useless for comparisons.
inline constexpr double kMostCoreWait = 0.02;

// Returns whether work of this duration may be compared with a prediction: it waited for a core for at most the
// fraction `most` of it and of 2.5 ms, since waking up takes some microseconds on an idle machine too.
bool is_calm(const CoreWait& wait, std::int64_t duration_ns, double most);

}  // namespace sluice::exec
