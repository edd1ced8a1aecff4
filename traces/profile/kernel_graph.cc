#include "traces/profile/kernel_graph.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <utility>

#include "model/to_size.h"

namespace sluice::traces {
namespace {

double ns_of(Duration time) { return static_cast<double>(time.count()); }

class KernelGraphBuilder {
 public:
  KernelGraphBuilder(const std::vector<GpuTrace>& traces, const MatchedCalls& matched,
                     const std::vector<std::vector<std::int32_t>>& call_of, const std::vector<std::int32_t>& step_of)
      : traces_(traces), matched_(matched), call_of_(call_of), step_of_(step_of) {}

  KernelGraph graph() {
    first_ = traces_[0].steps[to_size(step_of_[0])].begin;
    for (std::size_t t = 0; t < traces_.size(); ++t) {
      first_ = std::min(first_, traces_[t].steps[to_size(step_of_[t])].begin);
      position_.emplace_back(traces_[t].kernels.size(), -1);
    }
    place();
    graph_.need_begin.assign(graph_.kernels.size() + 1, 0);
    needs_.assign(graph_.kernels.size(), {-1, -1});
    graph_.delay.assign(graph_.kernels.size(), 0);
    graph_.transfer.assign(graph_.kernels.size(), 0);
    graph_.host.assign(graph_.kernels.size(), 0);
    for (std::size_t t = 0; t < traces_.size(); ++t) add_needs(t);
    set_transfers();
    for (std::size_t p = 0; p < needs_.size(); ++p) {
      for (const std::int32_t need : needs_[p]) {
        if (need >= 0) graph_.needs.push_back(need);
      }
      graph_.need_begin[p + 1] = static_cast<std::int32_t>(graph_.needs.size());
    }
    return std::move(graph_);
  }

 private:
  bool in_step(std::int32_t trace, std::int32_t kernel) const {
    return kernel_at({trace, kernel}).step == step_of_[to_size(trace)];
  }
  const GpuKernel& kernel_at(const KernelOfTrace& at) const {
    return traces_[to_size(at.trace)].kernels[to_size(at.kernel)];
  }

  // The last start of a call, if all of its kernels are of this step and run together; otherwise they are on their own.
  Duration last_start(const MatchedCall& call) const {
    Duration start = Duration::min();
    Duration end = Duration::max();
    for (const KernelOfTrace& member : call.members) {
      if (!in_step(member.trace, member.kernel)) return Duration::min();
      start = std::max(start, kernel_at(member).start);
      end = std::min(end, kernel_at(member).end);
    }
    return start < end ? start : Duration::min();
  }

  // Orders groups by their last start: what a kernel needs has ended by its start, and a group ends after its last one.
  void place() {
    struct Group {
      Duration key{};
      KernelOfTrace first;
      std::int32_t call = -1;
    };
    std::vector<Group> groups;
    for (std::size_t t = 0; t < traces_.size(); ++t) {
      for (std::size_t k = 0; k < traces_[t].kernels.size(); ++k) {
        const KernelOfTrace at{static_cast<std::int32_t>(t), static_cast<std::int32_t>(k)};
        if (!in_step(at.trace, at.kernel)) continue;
        const std::int32_t call = call_of_[t][k];
        const Duration together = call < 0 ? Duration::min() : last_start(matched_.calls[to_size(call)]);
        if (together == Duration::min()) {
          groups.push_back({kernel_at(at).start, at, -1});
        } else if (matched_.calls[to_size(call)].members[0].trace == at.trace) {
          groups.push_back({together, at, call});
        }
      }
    }
    std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
      return std::tuple(a.key, a.first.trace, a.first.kernel) < std::tuple(b.key, b.first.trace, b.first.kernel);
    });
    for (const Group& group : groups) {
      graph_.group_begin.push_back(static_cast<std::int32_t>(graph_.kernels.size()));
      if (group.call < 0) {
        add(group.first);
        continue;
      }
      for (const KernelOfTrace& member : matched_.calls[to_size(group.call)].members) add(member);
    }
    graph_.group_begin.push_back(static_cast<std::int32_t>(graph_.kernels.size()));
  }

  void add(const KernelOfTrace& at) {
    position_[to_size(at.trace)][to_size(at.kernel)] = static_cast<std::int32_t>(graph_.kernels.size());
    graph_.kernels.push_back(at);
  }

  void add_needs(std::size_t t) {
    const std::vector<GpuKernel>& kernels = traces_[t].kernels;
    std::vector<std::int32_t> by_end;
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      if (position_[t][k] >= 0) by_end.push_back(static_cast<std::int32_t>(k));
    }
    const std::vector<std::int32_t> by_start = by_end;
    std::stable_sort(by_end.begin(), by_end.end(),
                     [&](std::int32_t a, std::int32_t b) { return kernels[to_size(a)].end < kernels[to_size(b)].end; });
    std::vector<std::int32_t> on_stream;  // the last kernel of each stream
    std::size_t ended = 0;
    for (const std::int32_t k : by_start) {
      const GpuKernel& kernel = kernels[to_size(k)];
      if (to_size(kernel.stream) >= on_stream.size()) on_stream.resize(to_size(kernel.stream) + 1, -1);
      while (ended < by_end.size() && kernels[to_size(by_end[ended])].end <= kernel.start) ++ended;
      const std::int32_t before = std::exchange(on_stream[to_size(kernel.stream)], k);
      set_needs(t, k, before, ended > 0 ? by_end[ended - 1] : -1);
    }
  }

  // `before`: on its stream; `ended`: before its start.
  void set_needs(std::size_t t, std::int32_t k, std::int32_t before, std::int32_t ended) {
    const std::vector<GpuKernel>& kernels = traces_[t].kernels;
    const GpuKernel& kernel = kernels[to_size(k)];
    const std::size_t own = to_size(position_[t][to_size(k)]);
    Duration ready = first_;
    const auto need = [&](std::int32_t other, std::int32_t& slot) {
      // Kernels of a stream that overlap by the resolution of the clock do not wait for each other's ends.
      if (other < 0 || other == k || kernels[to_size(other)].end > kernel.start) return;
      const std::int32_t position = position_[t][to_size(other)];
      if (position >= group_begin_of(own)) return;
      slot = position;
      ready = std::max(ready, kernels[to_size(other)].end);
    };
    need(ended, needs_[own][0]);
    if (before != ended) need(before, needs_[own][1]);
    graph_.delay[own] = ns_of(std::max(Duration::zero(), kernel.start - ready));
    if (kernel.launched != Duration::min()) {
      graph_.host[own] = std::clamp(ns_of(kernel.launched - ready), 0.0, graph_.delay[own]);
    }
  }

  std::int32_t group_begin_of(std::size_t position) const {
    return *std::prev(
        std::upper_bound(graph_.group_begin.begin(), graph_.group_begin.end(), static_cast<std::int32_t>(position)));
  }

  void set_transfers() {
    for (std::size_t g = 0; g + 1 < graph_.group_begin.size(); ++g) {
      Duration start = Duration::min();
      const std::size_t end = to_size(graph_.group_begin[g + 1]);
      for (std::size_t p = to_size(graph_.group_begin[g]); p < end; ++p) {
        start = std::max(start, kernel_at(graph_.kernels[p]).start);
      }
      for (std::size_t p = to_size(graph_.group_begin[g]); p < end; ++p) {
        graph_.transfer[p] = ns_of(kernel_at(graph_.kernels[p]).end - start);
      }
    }
  }

  const std::vector<GpuTrace>& traces_;
  const MatchedCalls& matched_;
  const std::vector<std::vector<std::int32_t>>& call_of_;
  const std::vector<std::int32_t>& step_of_;
  Duration first_{};
  std::vector<std::vector<std::int32_t>> position_;  // by trace and kernel; -1: of another step
  std::vector<std::array<std::int32_t, 2>> needs_;   // by position; -1: none
  KernelGraph graph_;
};

}  // namespace

KernelGraph kernel_graph(const std::vector<GpuTrace>& traces, const MatchedCalls& matched,
                         const std::vector<std::vector<std::int32_t>>& call_of,
                         const std::vector<std::int32_t>& step_of) {
  return KernelGraphBuilder(traces, matched, call_of, step_of).graph();
}

std::vector<std::vector<std::int32_t>> calls_of_kernels(const std::vector<GpuTrace>& traces,
                                                        const MatchedCalls& matched) {
  std::vector<std::vector<std::int32_t>> out;
  for (const GpuTrace& trace : traces) out.emplace_back(trace.kernels.size(), -1);
  for (std::size_t call = 0; call < matched.calls.size(); ++call) {
    for (const KernelOfTrace& member : matched.calls[call].members) {
      out[to_size(member.trace)][to_size(member.kernel)] = static_cast<std::int32_t>(call);
    }
  }
  return out;
}

}  // namespace sluice::traces
