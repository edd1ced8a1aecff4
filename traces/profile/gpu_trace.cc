#include "traces/profile/gpu_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <set>
#include <utility>

#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::traces {
namespace {

std::string lowered(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

bool has_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

constexpr std::int64_t kMostEvents = 100'000'000;
constexpr std::int64_t kMostBaseTime = 4'000'000'000'000'000'000;  // year 2096
constexpr Duration kDay = std::chrono::hours(24);
constexpr Duration kMostSpan = 10 * kDay;  // so that sums over ranks do not overflow
constexpr std::string_view kStepRange = "ProfilerStep#";

bool is_gpu_work(const std::string& category) {
  return category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset";
}

}  // namespace

std::string_view name_of(GpuKernelClass kind) {
  constexpr std::string_view kNames[] = {"GEMM", "attention", "elementwise", "other", "communication", "copy"};
  return kNames[static_cast<std::size_t>(kind)];
}

GpuKernelClass kernel_class(std::string_view category, std::string_view name) {
  if (category != "kernel" || name.starts_with("Memcpy") || name.starts_with("Memset")) return GpuKernelClass::copy;
  const std::string text = lowered(name);
  if (has_any(text, {"nccl", "rccl", "nvshmem", "deep_ep::", "multimem", "cross_device_reduce", "symm_mem",
                     "userbuffers_"})) {
    return GpuKernelClass::communication;
  }
  if (has_any(text, {"flash", "fmha", "attention", "attn", "sdpa", "mha_"})) return GpuKernelClass::attention;
  if (has_any(text, {"gemm", "gemv", "cublas", "nvjet", "xmma", "cijk_", "splitk", "matmul", "triton_mm", "_mm_",
                     "cutlass", "wgrad", "dgrad", "implicit_convolve"})) {
    return GpuKernelClass::gemm;
  }
  if (has_any(text,
              {"elementwise", "reduce",   "norm",      "softmax", "triton_",      "dropout",     "gelu",      "silu",
               "swiglu",      "rope",     "rotary",    "concat",  "catarray",     "copy_kernel", "fill",      "index",
               "scatter",     "gather",   "embedding", "entropy", "multi_tensor", "adam",        "transpose", "permute",
               "cast",        "quantize", "arange",    "sort",    "scan"})) {
    return GpuKernelClass::elementwise;
  }
  return GpuKernelClass::other;
}

std::string_view collective_name(std::string_view name) {
  std::string text = lowered(name.substr(0, name.find('(')));
  std::erase(text, '_');
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"allreduce", "all-reduce"}, {"reducescatter", "reduce-scatter"},
      {"allgather", "all-gather"}, {"alltoall", "all-to-all"},
      {"broadcast", "broadcast"},  {"sendrecv", "send/receive"},
      {"dispatch", "dispatch"},    {"combine", "combine"},
      {"barrier", "barrier"},      {"crossdevicereduce", "all-reduce"},
      {"reduce", "reduce"},        {"send", "send"},
      {"recv", "receive"}};
  for (const auto& [word, collective] : kNames) {
    if (text.find(word) != std::string::npos) return collective;
  }
  return {};
}

std::string short_kernel_name(std::string_view name) {
  std::string out;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (name.substr(i).starts_with("(anonymous namespace)")) {
      i += std::string_view("(anonymous namespace)").size() - 1;
      continue;
    }
    if (c == '<') ++depth;
    if (c == '(' && depth == 0 && !out.empty()) break;
    if (depth == 0) out += c;
    if (c == '>') depth = std::max(0, depth - 1);
  }
  if (out.starts_with("void ")) out.erase(0, 5);
  const std::size_t colons = out.rfind("::");
  if (colons != std::string::npos && colons + 2 < out.size()) out.erase(0, colons + 2);
  while (out.ends_with(' ')) out.pop_back();
  return out.empty() ? std::string(name) : out;
}

void GpuTraceReader::add(const TraceEvent& event) {
  ++num_events_;
  if (event.phase != "X") return;
  const std::string& category = event.category;
  if (is_gpu_work(category)) return add_kernel(event);
  if (category == "cuda_runtime" || category == "cuda_driver") {
    if (event.correlation >= 0 && event.start) launches_.push_back({event.correlation, *event.start});
    return;
  }
  num_cpu_ops_ += category == "cpu_op" ? 1 : 0;
  if (!event.collective.name.empty() && event.collective.external_id >= 0) {
    call_of_external_.emplace(event.collective.external_id, call_index(event));
  }
  if (!category.ends_with("user_annotation")) return;
  has_pipeline_ranges_ |= event.name.starts_with("PP:");
  if (event.name.starts_with(kStepRange)) add_step(event);
}

void GpuTraceReader::add_kernel(const TraceEvent& event) {
  const auto fail = [&](const std::string& rule) {
    throw InputError(fmt::format("{}: event {}: {}: {}", source_, event.number, event.name.substr(0, 80), rule));
  };
  if (!event.start || !event.duration) fail("expected ts and dur");
  if (*event.duration < -kClockResolution) fail("dur: expected 0 or more");
  if (std::ssize(kernels_) + std::ssize(launches_) >= kMostEvents) {
    fail(fmt::format("expected at most {} kernels and launches", kMostEvents));
  }
  num_negative_ += *event.duration < Duration::zero() ? 1 : 0;
  const auto stream = stream_at_.try_emplace({event.pid, event.tid}, static_cast<std::int32_t>(stream_at_.size()));
  GpuKernel kernel{.start = *event.start,
                   .end = *event.start + std::max(*event.duration, Duration::zero()),
                   .launched = Duration::min(),
                   .name = name_index(event),
                   .stream = stream.first->second};
  const bool communicates = all_.name_of(kernel).kind == GpuKernelClass::communication;
  if (communicates) kernel.call = call_index(event);
  if (communicates && event.collective.external_id >= 0) {
    external_.emplace_back(kernels_.size(), event.collective.external_id);
  }
  kernels_.push_back(kernel);
  correlations_.push_back(event.correlation);
}

void GpuTraceReader::add_step(const TraceEvent& event) {
  const std::string_view text = std::string_view(event.name).substr(kStepRange.size());
  Range range;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), range.number);
  if (error != std::errc{} || end != text.data() + text.size() || range.number < 0 || !event.start || !event.duration) {
    throw InputError(fmt::format("{}: event {}: {}: expected a number after {}, ts and dur", source_, event.number,
                                 event.name, kStepRange));
  }
  range.start = *event.start;
  range.end = *event.start + std::max(*event.duration, Duration::zero());
  (event.category == "user_annotation" ? host_steps_ : device_steps_).push_back(range);
}

std::int32_t GpuTraceReader::name_index(const TraceEvent& event) {
  std::string key = event.category + '\n' + event.name + '\n' + event.collective.name;
  const auto [found, is_new] = name_at_.try_emplace(std::move(key), static_cast<std::int32_t>(all_.names.size()));
  if (!is_new) return found->second;
  KernelName name{.name = event.name, .kind = kernel_class(event.category, event.name)};
  if (name.kind == GpuKernelClass::communication) {
    const std::string_view recorded = collective_name(event.collective.name);
    name.collective = recorded.empty() ? collective_name(event.name) : recorded;
    if (name.collective.empty()) name.collective = "other";
  }
  all_.names.push_back(std::move(name));
  return found->second;
}

// The call that the args of an event describe; -1: none.
std::int32_t GpuTraceReader::call_index(const TraceEvent& event) {
  const CollectiveArgs& args = event.collective;
  if (args.name.empty() && args.group.empty()) return -1;
  CollectiveCall call{.number = args.number, .size = args.size, .source = args.source, .destination = args.destination};
  if (!args.group.empty()) {
    const auto [found, is_new] =
        group_at_.try_emplace(args.group + ' ' + args.ranks, static_cast<std::int32_t>(all_.groups.size()));
    if (is_new) all_.groups.push_back(found->first);
    call.group = found->second;
  }
  all_.calls.push_back(call);
  return static_cast<std::int32_t>(all_.calls.size()) - 1;
}

void GpuTraceReader::match_launches() {
  const auto by_correlation = [](const Launch& a, const Launch& b) { return a.correlation < b.correlation; };
  std::stable_sort(launches_.begin(), launches_.end(), by_correlation);
  for (std::size_t i = 0; i < kernels_.size(); ++i) {
    const Launch wanted{correlations_[i], {}};
    const auto found = std::lower_bound(launches_.begin(), launches_.end(), wanted, by_correlation);
    if (found != launches_.end() && found->correlation == wanted.correlation) {
      kernels_[i].launched = std::min(found->at, kernels_[i].start);
    }
  }
  launches_ = {};
  correlations_ = {};
}

// Kernels have no number of their call, and in older traces nothing: the CPU op that launched them has.
void GpuTraceReader::match_calls() {
  for (const auto& [at, id] : external_) {
    const auto found = call_of_external_.find(id);
    if (found == call_of_external_.end()) continue;
    std::int32_t& call = kernels_[at].call;
    if (call < 0) {
      call = found->second;
      continue;
    }
    CollectiveCall& own = all_.calls[to_size(call)];
    const CollectiveCall& other = all_.calls[to_size(found->second)];
    if (own.number < 0) own.number = other.number;
    if (own.source < 0) own.source = other.source;
    if (own.destination < 0) own.destination = other.destination;
  }
}

// Finds the steps of a GPU, whose kernels are sorted by start, and the step of each kernel.
void GpuTraceReader::divide(GpuTrace& trace) const {
  std::vector<GpuKernel>& kernels = trace.kernels;
  Duration last = kernels.front().end;
  for (const GpuKernel& kernel : kernels) last = std::max(last, kernel.end);
  if (last - kernels.front().start > kMostSpan) {
    throw InputError(fmt::format("{}: /traceEvents: expected kernels within {} days, got {:.0f}", source_,
                                 kMostSpan / kDay, to_seconds(last - kernels.front().start) / to_seconds(kDay)));
  }
  const bool launched = std::any_of(kernels.begin(), kernels.end(),
                                    [](const GpuKernel& kernel) { return kernel.launched != Duration::min(); });
  std::vector<Range> ranges = !launched && !device_steps_.empty() ? device_steps_ : host_steps_;
  std::stable_sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.start < b.start; });
  // One range per step: those of the GPU are one per stream, and threads may repeat those of the host.
  std::set<std::int64_t> seen;
  std::erase_if(ranges, [&](const Range& range) { return !seen.insert(range.number).second; });
  std::vector<std::int32_t> step_of(ranges.size(), -1);
  for (GpuKernel& kernel : kernels) {
    const Duration at = launched ? kernel.launched : kernel.start;
    const auto after = std::upper_bound(ranges.begin(), ranges.end(), at,
                                        [](Duration time, const Range& range) { return time < range.start; });
    if (after == ranges.begin() || at > std::prev(after)->end) continue;
    const auto range = static_cast<std::size_t>(std::prev(after) - ranges.begin());
    // Steps in the order of their first kernels.
    if (step_of[range] < 0) {
      step_of[range] = static_cast<std::int32_t>(trace.steps.size());
      trace.steps.push_back({ranges[range].number, kernel.start, kernel.end});
    }
    kernel.step = step_of[range];
    trace.steps[to_size(kernel.step)].end = std::max(trace.steps[to_size(kernel.step)].end, kernel.end);
  }
  for (std::size_t i = 0; i + 1 < trace.steps.size(); ++i) trace.steps[i].end = trace.steps[i + 1].begin;
  if (!trace.steps.empty()) return;
  trace.steps.push_back({-1, kernels.front().start, last});
  for (GpuKernel& kernel : kernels) kernel.step = 0;
}

std::vector<GpuTrace> GpuTraceReader::finish(const TraceHead& head) && {
  if (kernels_.empty()) {
    throw InputError(fmt::format(
        "{}: /traceEvents: expected kernels of a GPU (category kernel, gpu_memcpy or gpu_memset), got {}; record with "
        "ProfilerActivity.CUDA on a machine with a GPU; --names reads ops with other names",
        source_,
        num_cpu_ops_ > 0  ? fmt::format("{} ops of the CPU only", num_cpu_ops_)
        : num_events_ > 0 ? fmt::format("{} other events", num_events_)
                          : std::string("no events")));
  }
  if (head.base_time_ns < 0 || head.base_time_ns > kMostBaseTime) {
    throw InputError(
        fmt::format("{}: /baseTimeNanoseconds: expected 0 to {}, got {}", source_, kMostBaseTime, head.base_time_ns));
  }
  match_launches();
  match_calls();
  std::map<std::int64_t, GpuTrace> by_device;
  std::vector<std::int64_t> device_of(stream_at_.size());
  for (const auto& [place, index] : stream_at_) device_of[to_size(index)] = place.first;
  for (const std::int64_t device : device_of) {
    GpuTrace& trace = by_device[device];
    trace = {.source = source_,
             .rank = head.rank,
             .device = device,
             .names = all_.names,
             .groups = all_.groups,
             .calls = all_.calls};
  }
  for (const GpuKernel& kernel : kernels_) by_device[device_of[to_size(kernel.stream)]].kernels.push_back(kernel);
  kernels_ = {};
  std::vector<GpuTrace> out;
  for (auto& [device, trace] : by_device) {
    std::stable_sort(trace.kernels.begin(), trace.kernels.end(), [](const GpuKernel& a, const GpuKernel& b) {
      return a.start != b.start ? a.start < b.start : a.end < b.end;
    });
    divide(trace);
    const Duration base{head.base_time_ns};
    for (GpuKernel& kernel : trace.kernels) {
      kernel.start += base;
      kernel.end += base;
      if (kernel.launched != Duration::min()) kernel.launched += base;
    }
    for (ProfiledStep& step : trace.steps) step.begin += base, step.end += base;
    if (num_negative_ > 0) trace.notes.push_back(fmt::format("{} negative durations count as 0", num_negative_));
    out.push_back(std::move(trace));
  }
  return out;
}

}  // namespace sluice::traces
