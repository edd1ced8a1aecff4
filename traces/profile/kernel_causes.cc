#include "traces/profile/kernel_causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <utility>

#include "model/median.h"
#include "model/to_size.h"
#include "traces/profile/kernel_graph.h"

namespace sluice::traces {
namespace {

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

KernelCauses kernel_causes(const std::vector<GpuTrace>& traces, const std::vector<std::int64_t>& ranks,
                           const std::vector<std::string>& names, const MatchedCalls& matched,
                           const std::vector<std::vector<char>>& keep) {
  return KernelCauseFinder(traces, ranks, names, matched, keep).causes();
}

}  // namespace sluice::traces
