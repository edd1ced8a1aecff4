#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "traces/profile/gpu_trace.h"

namespace sluice::traces {

// A kernel of one of several traces.
struct KernelOfTrace {
  std::int32_t trace = 0;
  std::int32_t kernel = 0;
};

// A collective, or a send and its receive, of which at least two ranks are recorded.
struct MatchedCall {
  std::string name;  // "all-reduce", "send/receive"
  std::vector<KernelOfTrace> members;
};

// The communication kernels of several traces that belong together.
struct MatchedCalls {
  std::vector<MatchedCall> calls;
  std::int64_t num_unmatched = 0;        // collectives of groups of which a rank's call is missing
  std::int64_t num_unmatched_sends = 0;  // point-to-point kernels without a partner
  std::int64_t num_alone = 0;            // of groups of which only one rank was recorded
  std::vector<std::string> notes;
};

// Matches the communication kernels of traces of several ranks: by group and number of the call (Seq) where they are
// recorded, otherwise by group, collective, step and order; sends and receives by their ranks and order, where these
// are recorded or follow from a group of two. Traces without groups count as one group, whose ranks must have equally
// many kernels. `ranks`: of the traces.
MatchedCalls matched_calls(const std::vector<GpuTrace>& traces, const std::vector<std::int64_t>& ranks);

// Puts the clocks of all traces on one, with a note, if ends of matched calls differ by over 50 us: all ranks of a
// collective other than a broadcast or a reduce end it at about the same time. Clocks are assumed not to drift: each is
// shifted by the median difference. The note has the differences that remain.
void align_clocks_by_calls(std::vector<GpuTrace>& traces, MatchedCalls& matched);

// The time that a rank waits in communication for ranks that start it later. Times are sums over matched calls.
struct CallWaits {
  Duration waits{};        // until the last rank has started, at most the duration of the kernel
  Duration keeps{};        // that the others wait for this rank on average, if it starts last
  std::int64_t last = 0;   // number of calls that it starts last
  std::int64_t calls = 0;  // number of matched calls
};
// By trace, of kernels of kept steps: `keep(trace, step)`.
std::vector<CallWaits> call_waits(const std::vector<GpuTrace>& traces, const MatchedCalls& matched,
                                  const std::vector<std::vector<char>>& keep);

}  // namespace sluice::traces
