#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "traces/profile/breakdown.h"
#include "traces/profile/matched_calls.h"

namespace sluice::traces {

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
