#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "traces/profile/breakdown.h"
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

// Why steps take long, and what ends it.
struct KernelCause {
  std::string kind;        // "device", "balance", "host", "communication", "copies"
  std::string cause;       // for the user: "rank 3 computes 1.25 times as long as the median rank, in as many kernels"
  std::string remedy;      // for the user: "check its clocks, power and temperature, or replace it"
  std::int64_t rank = -1;  // -1: all
  double saved_seconds = 0;  // mean per step: replayed minus replayed without the cause
};

// Steps of several ranks without one cause at a time.
struct KernelCauses {
  std::vector<std::int64_t> steps;  // numbers of the replayed ones: kept on all ranks
  double measured = 0;              // mean seconds of a step, from its first kernel on any rank to its last end
  double replayed = 0;              // with the measured durations and delays
  std::vector<KernelCause> causes;  // largest first, those that save more than 0.1 % of a step
};

// Replays each step that all ranks have (kernel_graph) with one change at a time: compute kernels of a rank that takes
// over 1 % longer than the median rank in the median's time; compute kernels of all ranks in the mean time; without
// waiting for the host, on all ranks or on one that waits 1 % of a step longer than the median rank; with
// communication of a kind, or copies, of 0 s. `names`: of the ranks. `keep`: by trace and step.
KernelCauses kernel_causes(const std::vector<GpuTrace>& traces, const std::vector<std::int64_t>& ranks,
                           const std::vector<std::string>& names, const MatchedCalls& matched,
                           const std::vector<std::vector<char>>& keep);

}  // namespace sluice::traces
