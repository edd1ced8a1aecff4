#pragma once

#include <cstdint>
#include <vector>

#include "traces/profile/gpu_trace.h"
#include "traces/profile/matched_calls.h"
#include "traces/replay/replay.h"

namespace sluice::traces {

// The kernels of one step on all ranks, to replay them with other durations. A kernel follows the one before it on its
// stream, and the kernel of its rank that had ended last when it started. Matched calls start when all of their ranks
// are ready. Replayed with its own delays and durations, the last end is the measured one, to the nanosecond.
struct KernelGraph : ReplayGraph {
  std::vector<KernelOfTrace> kernels;  // by position
  std::vector<double> host;            // ns, by position: of the delay, the time until the kernel was launched
};

// Builds the graph of the step at `step_of[trace]` of each trace. `call_of`: by trace and kernel, the index of its
// call; -1: none. Times are from the first begin of the step on any rank.
KernelGraph kernel_graph(const std::vector<GpuTrace>& traces, const MatchedCalls& matched,
                         const std::vector<std::vector<std::int32_t>>& call_of,
                         const std::vector<std::int32_t>& step_of);

// The index of the call of each kernel, by trace; -1: none.
std::vector<std::vector<std::int32_t>> calls_of_kernels(const std::vector<GpuTrace>& traces,
                                                        const MatchedCalls& matched);

}  // namespace sluice::traces
