#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "traces/chrome/trace_events.h"

namespace sluice::traces {

// What a kernel of a GPU computes, by its name.
enum class GpuKernelClass : std::uint8_t { gemm, attention, elementwise, other, communication, copy };

inline constexpr int kNumKernelClasses = 6;

std::string_view name_of(GpuKernelClass kind);

constexpr bool is_compute(GpuKernelClass kind) { return kind <= GpuKernelClass::other; }

// The class of an event of PyTorch's profiler with this category (kernel, gpu_memcpy or gpu_memset) and name.
// Communication is what NCCL, RCCL, NVSHMEM, DeepEP and PyTorch's symmetric memory name. Elementwise includes
// reductions, normalizations, and Triton kernels without a name of another class.
GpuKernelClass kernel_class(std::string_view category, std::string_view name);

// The collective that a kernel name ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)") or the name in the args of an
// event ("_allgather_base") denotes: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce",
// "send", "receive", "send/receive", "dispatch", "combine", "barrier"; empty for others.
std::string_view collective_name(std::string_view name);

// The name without namespaces, template arguments, arguments and return type.
std::string short_kernel_name(std::string_view name);

// A name of kernels, with the collective that kernels of this name took part in; empty: none.
struct KernelName {
  std::string name;
  GpuKernelClass kind = GpuKernelClass::other;
  std::string collective;
};

// A kernel, copy or fill of a GPU. 40 bytes, so that long traces fit into memory.
struct GpuKernel {
  Duration start{};
  Duration end{};
  Duration launched{};      // by the host, not after the start; Duration::min(): unknown
  std::int32_t name = 0;    // index into GpuTrace::names
  std::int32_t stream = 0;  // index
  std::int32_t call = -1;   // of communication: index into GpuTrace::calls; -1: not described
  std::int32_t step = -1;   // index into GpuTrace::steps; -1: launched outside of all
};

// What a trace records of a collective, or of a send or receive.
struct CollectiveCall {
  std::int32_t group = -1;   // index into GpuTrace::groups; -1: unknown
  std::int64_t number = -1;  // of the call in its group (Seq); -1: unknown
  std::int64_t size = -1;    // ranks of the group
  std::int64_t source = -1;  // of a send or receive: ranks
  std::int64_t destination = -1;
};

// The time of a GPU from the first kernel of a step until the first of the next one, for the last step until its last
// end.
struct ProfiledStep {
  std::int64_t number = -1;  // of ProfilerStep; -1: the trace has none, and this is all of it
  Duration begin{};
  Duration end{};
};

// What PyTorch's profiler (Kineto) recorded of one GPU.
struct GpuTrace {
  std::string source;                // file
  std::optional<std::int64_t> rank;  // of distributedInfo
  std::int64_t device = 0;           // number of the GPU on its host
  std::vector<KernelName> names;
  std::vector<std::string> groups;  // of communication: name and, where recorded, ranks
  std::vector<CollectiveCall> calls;
  std::vector<GpuKernel> kernels;   // by start; never empty
  std::vector<ProfiledStep> steps;  // contiguous and ascending; never empty
  std::vector<std::string> notes;

  const KernelName& name_of(const GpuKernel& kernel) const { return names[static_cast<std::size_t>(kernel.name)]; }
};

// Collects the kernels of one file of PyTorch's profiler: events with category kernel, gpu_memcpy or gpu_memset, their
// launches (cuda_runtime, cuda_driver; matched by `correlation`), ranges ProfilerStep#N, and what args of kernels and
// of the CPU ops record_param_comms, matched by `External id`, tell of communication (torch/csrc/distributed/c10d/
// ParamCommsUtils.hpp: "Collective name", "Process Group Name", "Process Group Ranks", "Group size", "Seq", "Src Rank",
// "Dst Rank").
class GpuTraceReader {
 public:
  explicit GpuTraceReader(std::string source) : source_(std::move(source)) {}

  // Adds an event, in file order. Throws InputError "source: event N: ...".
  void add(const TraceEvent& event);
  bool has_kernels() const { return !kernels_.empty(); }
  bool has_pipeline_ranges() const { return has_pipeline_ranges_; }  // "PP:..."
  // To be called once, after the last event. Returns the GPUs in ascending order of their numbers. A kernel belongs to
  // the step in whose range it was launched; without launches, in whose range it started, on the GPU if that has such
  // ranges. Throws InputError if there are no kernels, or if they span over 10 days.
  std::vector<GpuTrace> finish(const TraceHead& head) &&;

 private:
  struct Range {
    std::int64_t number = 0;
    Duration start{};
    Duration end{};
  };
  struct Launch {
    std::int64_t correlation = 0;
    Duration at{};
  };

  void add_kernel(const TraceEvent& event);
  void add_step(const TraceEvent& event);
  std::int32_t name_index(const TraceEvent& event);
  std::int32_t call_index(const TraceEvent& event);
  void match_launches();
  void match_calls();
  void divide(GpuTrace& trace) const;

  std::string source_;
  std::int64_t num_events_ = 0;
  std::int64_t num_cpu_ops_ = 0;
  std::int64_t num_negative_ = 0;
  bool has_pipeline_ranges_ = false;
  GpuTrace all_;  // kernels of all GPUs: names, groups, calls
  std::vector<GpuKernel> kernels_;
  std::vector<std::int64_t> correlations_;  // by kernel
  std::vector<Launch> launches_;
  std::vector<Range> host_steps_;
  std::vector<Range> device_steps_;
  std::unordered_map<std::string, std::int32_t> name_at_;
  std::map<std::string, std::int32_t, std::less<>> group_at_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int32_t> stream_at_;  // by pid and tid
  std::vector<std::pair<std::size_t, std::int64_t>> external_;               // kernel and External id
  std::unordered_map<std::int64_t, std::int32_t> call_of_external_;
};

}  // namespace sluice::traces
