#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "traces/profile/breakdown.h"
#include "traces/profile/gpu_trace.h"
#include "traces/profile/kernel_causes.h"
#include "traces/profile/matched_calls.h"

namespace sluice::tools {

// Kernels of a name on all ranks, in kept steps.
struct KernelRow {
  std::string name;
  GpuKernelClass kind = GpuKernelClass::other;
  std::string collective;
  std::int64_t count = 0;
  double total_s = 0;
};

// What a rank did in kept steps.
struct ProfiledRank {
  std::string name;       // "rank 3", or "rank 3 GPU 1" of several in a file
  std::string source;     // file
  std::int64_t rank = 0;  // of distributedInfo, or its index
  std::int64_t kernels = 0;
  std::vector<std::int64_t> steps;    // numbers of kept steps; -1: the whole trace
  std::vector<Breakdown> breakdowns;  // by kept step
  Breakdown sum;
  std::array<double, kNumKernelClasses> class_s{};  // sums of durations
  CallWaits waits;
};

// What `sluice analyze` finds in traces of PyTorch's profiler without ops of a pipeline.
struct ProfileAnalysis {
  std::vector<ProfiledRank> ranks;
  std::vector<KernelRow> kernels;                          // most time first
  std::vector<std::pair<std::string, KernelRow>> classes;  // "GEMM", "all-reduce", ...; most time first
  double kernel_s = 0;                                     // of all kernels
  std::vector<MatchedCall> calls;
  std::int64_t num_unmatched = 0;        // kernels of collectives
  std::int64_t num_unmatched_sends = 0;  // kernels that send or receive
  KernelCauses what_if;
  std::string slowest;  // which rank the others wait for, and why; empty: none
  std::vector<std::string> notes;
};

// `all_steps`: keep a first step that took over 1.5 times the median of the others.
ProfileAnalysis analyse_profile(std::vector<GpuTrace> traces, bool all_steps);

std::string profile_text(const ProfileAnalysis& analysis, std::size_t top);
// sluice.profile/1
nlohmann::ordered_json profile_document(const ProfileAnalysis& analysis);

}  // namespace sluice::tools
