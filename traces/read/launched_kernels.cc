#include "traces/read/launched_kernels.h"

#include <algorithm>
#include <map>

namespace sluice::traces {

void LaunchedKernels::add(const TraceEvent& event) {
  if (event.correlation < 0 || !event.start || !event.duration) return;
  if (event.category == "cuda_runtime" || event.category == "cuda_driver") {
    launches_.push_back({event.correlation, *event.start});
  } else if (event.category == "kernel" || event.category == "gpu_memcpy" || event.category == "gpu_memset") {
    const Duration end = *event.start + std::max(*event.duration, Duration::zero());
    kernels_.push_back({event.correlation, {event.pid, event.tid}, {*event.start, end}, {}});
  }
}

void LaunchedKernels::match() {
  const auto by_correlation = [](const Launch& a, const Launch& b) { return a.correlation < b.correlation; };
  std::stable_sort(launches_.begin(), launches_.end(), by_correlation);
  std::erase_if(kernels_, [&](Kernel& kernel) {
    const auto found =
        std::lower_bound(launches_.begin(), launches_.end(), Launch{kernel.correlation, {}}, by_correlation);
    if (found == launches_.end() || found->correlation != kernel.correlation) return true;
    kernel.launched = found->at;
    return false;
  });
  launches_ = {};
  std::stable_sort(kernels_.begin(), kernels_.end(),
                   [](const Kernel& a, const Kernel& b) { return a.launched < b.launched; });
}

template <class Visit>
void LaunchedKernels::for_each(const Span& host, const Visit& visit) const {
  auto at = std::lower_bound(kernels_.begin(), kernels_.end(), host.start,
                             [](const Kernel& kernel, Duration start) { return kernel.launched < start; });
  for (; at != kernels_.end() && at->launched < host.end; ++at) visit(*at);
}

std::optional<LaunchedKernels::Stream> LaunchedKernels::busiest_stream(const std::vector<Span>& host) const {
  std::map<Stream, Duration> busy;
  for (const Span& span : host) {
    for_each(span, [&](const Kernel& kernel) { busy[kernel.stream] += kernel.span.end - kernel.span.start; });
  }
  const auto most =
      std::max_element(busy.begin(), busy.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == busy.end() ? std::nullopt : std::optional(most->first);
}

std::optional<LaunchedKernels::Span> LaunchedKernels::extent(const Span& host, const Stream& stream) const {
  std::optional<Span> out;
  for_each(host, [&](const Kernel& kernel) {
    if (kernel.stream != stream) return;
    if (!out) out = kernel.span;
    out->start = std::min(out->start, kernel.span.start);
    out->end = std::max(out->end, kernel.span.end);
  });
  return out;
}

}  // namespace sluice::traces
