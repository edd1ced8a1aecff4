#include "traces/profile/kernel_causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "model/median.h"
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

constexpr int kLanes = 4;
constexpr double kSlowerBy = 1.01;
constexpr double kWorthNaming = 0.001;  // of a step

// Changes of durations and delays.
struct Change {
  KernelCause cause;
  std::vector<double> compute;  // factor of compute kernels, by trace
  std::vector<double> host;     // factor of the time that kernels wait for their launch, by trace
  std::string collective;       // takes 0 s; empty: none
  bool no_copies = false;
};

class KernelCauseFinder {
 public:
  KernelCauseFinder(const std::vector<GpuTrace>& traces, const std::vector<std::int64_t>& ranks,
                    const std::vector<std::string>& names, const MatchedCalls& matched,
                    const std::vector<std::vector<char>>& keep)
      : traces_(traces), ranks_(ranks), names_(names), matched_(matched), keep_(keep) {}

  KernelCauses causes() {
    find_steps();
    if (steps_.empty()) return std::move(out_);
    add_up();
    add_devices();
    add_balance();
    add_host();
    add_communication();
    replay_all();
    std::erase_if(out_.causes,
                  [&](const KernelCause& cause) { return cause.saved_seconds < kWorthNaming * out_.measured; });
    std::stable_sort(out_.causes.begin(), out_.causes.end(),
                     [](const KernelCause& a, const KernelCause& b) { return a.saved_seconds > b.saved_seconds; });
    return std::move(out_);
  }

 private:
  // The kept steps that all traces have, as an index per trace.
  void find_steps() {
    std::map<std::int64_t, std::vector<std::int32_t>> found;
    for (std::size_t t = 0; t < traces_.size(); ++t) {
      for (std::size_t s = 0; s < traces_[t].steps.size(); ++s) {
        if (keep_[t][s] != 0) found[traces_[t].steps[s].number].push_back(static_cast<std::int32_t>(s));
      }
    }
    for (auto& [number, step_of] : found) {
      if (step_of.size() != traces_.size()) continue;
      out_.steps.push_back(number);
      steps_.push_back(std::move(step_of));
    }
  }

  double steps() const { return static_cast<double>(steps_.size()); }

  // Sums per step and rank: compute, number of compute kernels, and idle time before launches.
  void add_up() {
    for (std::size_t t = 0; t < traces_.size(); ++t) {
      const std::vector<Breakdown> all = breakdowns(traces_[t]);
      double compute = 0;
      double count = 0;
      double host = 0;
      std::vector<char> used(all.size(), 0);
      for (const std::vector<std::int32_t>& step_of : steps_) {
        used[to_size(step_of[t])] = 1;
        host += to_seconds(all[to_size(step_of[t])].idle_for_host) / steps();
      }
      for (const GpuKernel& kernel : traces_[t].kernels) {
        if (kernel.step < 0 || used[to_size(kernel.step)] == 0) continue;
        const KernelName& name = traces_[t].name_of(kernel);
        if (name.kind == GpuKernelClass::communication) ++collectives_[name.collective];
        copies_ |= name.kind == GpuKernelClass::copy;
        if (!is_compute(name.kind)) continue;
        compute += to_seconds(kernel.end - kernel.start) / steps();
        count += 1 / steps();
      }
      compute_.push_back(compute);
      count_.push_back(count);
      host_.push_back(host);
    }
  }

  Change new_change(const char* kind, std::int64_t rank) const {
    Change change;
    change.cause.kind = kind;
    change.cause.rank = rank;
    change.compute.assign(traces_.size(), 1);
    change.host.assign(traces_.size(), 1);
    return change;
  }

  // Ranks that take longer for as many kernels as the others.
  void add_devices() {
    const double usual = lower_median(compute_);
    const double usual_count = lower_median(count_);
    for (std::size_t t = 0; t < traces_.size() && traces_.size() > 1 && usual > 0; ++t) {
      if (compute_[t] < usual * kSlowerBy || count_[t] > usual_count * kSlowerBy) continue;
      Change change = new_change("device", ranks_[t]);
      change.compute[t] = usual / compute_[t];
      change.cause.cause = fmt::format("{} computes {:.2f} times as long as the median rank, in as many kernels",
                                       names_[t], compute_[t] / usual);
      change.cause.remedy = fmt::format("check clocks, power and sizes of {}, or replace its GPU", names_[t]);
      changes_.push_back(std::move(change));
    }
  }

  void add_balance() {
    if (!changes_.empty()) return;  // ranks with as much work take longer
    const double mean = std::accumulate(compute_.begin(), compute_.end(), 0.0) / static_cast<double>(compute_.size());
    const auto most = std::max_element(compute_.begin(), compute_.end());
    if (*most < mean * kSlowerBy) return;
    Change change = new_change("balance", -1);
    for (std::size_t t = 0; t < traces_.size(); ++t) change.compute[t] = compute_[t] > 0 ? mean / compute_[t] : 1;
    change.cause.cause = fmt::format("compute differs: {:.2f} to {:.2f} of the mean, most on {}",
                                     *std::min_element(compute_.begin(), compute_.end()) / mean, *most / mean,
                                     names_[to_size(most - compute_.begin())]);
    change.cause.remedy = "balance compute over the ranks: layers, or tokens";
    changes_.push_back(std::move(change));
  }

  void add_host() {
    if (*std::max_element(host_.begin(), host_.end()) <= 0) return;
    Change all = new_change("host", -1);
    all.host.assign(traces_.size(), 0);
    const double most = *std::max_element(host_.begin(), host_.end());
    all.cause.cause = fmt::format("GPUs are idle until the host launches a kernel: up to {:.1f} % of a step",
                                  100 * most / mean_span());
    all.cause.remedy = "launch ahead: fewer synchronizations, larger kernels, torch.compile or CUDA graphs";
    changes_.push_back(std::move(all));
    const double usual = lower_median(host_);
    for (std::size_t t = 0; t < traces_.size() && traces_.size() > 1; ++t) {
      if (host_[t] - usual < (kSlowerBy - 1) * mean_span()) continue;
      Change change = new_change("host", ranks_[t]);
      change.host[t] = usual / host_[t];
      change.cause.cause = fmt::format("{} waits {:.1f} % of a step longer for its host than the median rank",
                                       names_[t], 100 * (host_[t] - usual) / mean_span());
      change.cause.remedy = fmt::format("check or replace the host of {}", names_[t]);
      changes_.push_back(std::move(change));
    }
  }

  double mean_span() const {
    double sum = 0;
    for (const std::vector<std::int32_t>& step_of : steps_) {
      const ProfiledStep& step = traces_[0].steps[to_size(step_of[0])];
      sum += to_seconds(step.end - step.begin) / steps();
    }
    return sum;
  }

  void add_communication() {
    for (const auto& [collective, count] : collectives_) {
      Change change = new_change("communication", -1);
      change.collective = collective;
      change.cause.cause = fmt::format("{} is exposed", collective == "other" ? "other communication" : collective);
      change.cause.remedy = "hide it beside compute, or send less";
      changes_.push_back(std::move(change));
    }
    if (!copies_) return;
    Change change = new_change("copies", -1);
    change.no_copies = true;
    change.cause.cause = "copies and fills of memory are exposed";
    change.cause.remedy = "copy from pinned memory on another stream, or not at all";
    changes_.push_back(std::move(change));
  }

  double duration(const KernelGraph& graph, std::size_t p, const Change& change) const {
    const KernelOfTrace& at = graph.kernels[p];
    const GpuTrace& trace = traces_[to_size(at.trace)];
    const KernelName& name = trace.name_of(trace.kernels[to_size(at.kernel)]);
    if (is_compute(name.kind)) return graph.transfer[p] * change.compute[to_size(at.trace)];
    if (name.kind == GpuKernelClass::copy) return change.no_copies ? 0 : graph.transfer[p];
    return !change.collective.empty() && name.collective == change.collective ? 0 : graph.transfer[p];
  }

  // Replays all changes, four at a time, on one step after the other, so that one graph is in memory.
  void replay_all() {
    const std::vector<std::vector<std::int32_t>> call_of = calls_of_kernels(traces_, matched_);
    std::vector<double> sum(changes_.size(), 0);
    for (const std::vector<std::int32_t>& step_of : steps_) {
      const KernelGraph graph = kernel_graph(traces_, matched_, call_of, step_of);
      out_.replayed += replay<1>(graph, true, [&](std::size_t p, int) { return graph.transfer[p]; })[0] / 1e9 / steps();
      out_.measured += measured(graph) / 1e9 / steps();
      for (std::size_t begin = 0; begin < changes_.size(); begin += kLanes) {
        const auto change = [&](int lane) -> const Change& {
          return changes_[std::min(begin + to_size(lane), changes_.size() - 1)];
        };
        const std::array<double, kLanes> last = replay_with<kLanes>(
            graph,
            [&](std::size_t p, int lane) {
              const double factor = change(lane).host[to_size(graph.kernels[p].trace)];
              return graph.delay[p] - (1 - factor) * graph.host[p];
            },
            [&](std::size_t p, int lane) { return duration(graph, p, change(lane)); },
            [](std::size_t, const std::array<double, kLanes>&) {});
        for (std::size_t k = begin; k < std::min(begin + kLanes, changes_.size()); ++k) {
          sum[k] += last[k - begin] / 1e9 / steps();
        }
      }
    }
    for (std::size_t k = 0; k < changes_.size(); ++k) {
      KernelCause cause = std::move(changes_[k].cause);
      cause.saved_seconds = out_.replayed - sum[k];
      out_.causes.push_back(std::move(cause));
    }
  }

  // From the first kernel of the step to the last end, in ns.
  double measured(const KernelGraph& graph) const {
    Duration first = Duration::max();
    Duration last = Duration::min();
    for (const KernelOfTrace& at : graph.kernels) {
      const GpuKernel& kernel = traces_[to_size(at.trace)].kernels[to_size(at.kernel)];
      first = std::min(first, kernel.start);
      last = std::max(last, kernel.end);
    }
    return static_cast<double>((last - first).count());
  }

  const std::vector<GpuTrace>& traces_;
  const std::vector<std::int64_t>& ranks_;
  const std::vector<std::string>& names_;
  const MatchedCalls& matched_;
  const std::vector<std::vector<char>>& keep_;
  std::vector<std::vector<std::int32_t>> steps_;
  std::vector<double> compute_;  // s per step, by trace
  std::vector<double> count_;    // compute kernels per step, by trace
  std::vector<double> host_;     // s per step, by trace
  std::map<std::string, std::int64_t> collectives_;
  bool copies_ = false;
  std::vector<Change> changes_;
  KernelCauses out_;
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

KernelCauses kernel_causes(const std::vector<GpuTrace>& traces, const std::vector<std::int64_t>& ranks,
                           const std::vector<std::string>& names, const MatchedCalls& matched,
                           const std::vector<std::vector<char>>& keep) {
  return KernelCauseFinder(traces, ranks, names, matched, keep).causes();
}

}  // namespace sluice::traces
