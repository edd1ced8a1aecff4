#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "traces/chrome/trace_events.h"

namespace sluice::traces {

// The kernels, copies and fills of a file of PyTorch's profiler, by the time at which the host launched them. Kineto's
// GPU ranges contain only what the thread of the CPU range launched, but autograd launches the kernels of a backward
// from a thread of its own, while the thread of the range waits for it.
class LaunchedKernels {
 public:
  using Stream = std::pair<std::int64_t, std::int64_t>;  // pid and tid of its events

  // Adds an event, in file order. Others than launches and kernels are ignored.
  void add(const TraceEvent& event);
  // To be called once, after the last event.
  void match();

  std::int64_t size() const { return std::ssize(launches_) + std::ssize(kernels_); }

  struct Span {
    Duration start{};
    Duration end{};
  };
  // Returns the stream on which what was launched within the spans of the host takes most time; none if nothing was.
  std::optional<Stream> busiest_stream(const std::vector<Span>& host) const;
  // Returns the time from the first start to the last end of what any thread launched on a stream within a span of the
  // host.
  std::optional<Span> extent(const Span& host, const Stream& stream) const;

 private:
  struct Launch {
    std::int64_t correlation = 0;
    Duration at{};
  };
  struct Kernel {
    std::int64_t correlation = 0;
    Stream stream;
    Span span;
    Duration launched{};
  };

  template <class Visit>
  void for_each(const Span& host, const Visit& visit) const;

  std::vector<Launch> launches_;
  std::vector<Kernel> kernels_;  // after `match` those with a launch, sorted by it
};

}  // namespace sluice::traces
