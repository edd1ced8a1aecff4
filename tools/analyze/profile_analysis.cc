#include "tools/analyze/profile_analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "model/median.h"
#include "model/to_size.h"
#include "tools/analyze/answer.h"

namespace sluice::tools {
namespace {

constexpr double kLongWarmUp = 1.5;  // a first step that takes this many times the median of the others

class ProfileAnalyst {
 public:
  ProfileAnalyst(std::vector<GpuTrace> traces, bool all_steps) : traces_(std::move(traces)), all_steps_(all_steps) {}

  ProfileAnalysis analysis() {
    number_ranks();
    choose_steps();
    MatchedCalls matched = matched_calls(traces_, numbers_);
    align_clocks_by_calls(traces_, matched);
    const std::vector<CallWaits> waits = call_waits(traces_, matched, keep_);
    for (std::size_t t = 0; t < traces_.size(); ++t) {
      add_rank(t);
      out_.ranks[t].waits = waits[t];
    }
    add_kernels();
    out_.what_if = kernel_causes(traces_, numbers_, names_, matched, keep_);
    find_slowest();
    out_.notes.insert(out_.notes.end(), matched.notes.begin(), matched.notes.end());
    out_.calls = std::move(matched.calls);
    out_.num_unmatched = matched.num_unmatched;
    out_.num_unmatched_sends = matched.num_unmatched_sends;
    return std::move(out_);
  }

 private:
  void number_ranks() {
    std::set<std::pair<std::int64_t, std::int64_t>> seen;  // rank and device
    std::map<std::string, int> devices;                    // by file
    bool known = true;
    for (const GpuTrace& trace : traces_) {
      ++devices[trace.source];
      known = known && trace.rank && seen.insert({*trace.rank, trace.device}).second;
    }
    std::map<std::string, std::int64_t> file;
    for (const GpuTrace& trace : traces_) file.try_emplace(trace.source, std::ssize(file));
    if (!known && file.size() > 1) {
      out_.notes.push_back("ranks are numbered in the order of the files: distributedInfo has no rank, or one twice");
    }
    const auto rank_of = [&](const GpuTrace& trace) { return known ? *trace.rank : file[trace.source]; };
    std::stable_sort(traces_.begin(), traces_.end(), [&](const GpuTrace& a, const GpuTrace& b) {
      return std::pair(rank_of(a), a.device) < std::pair(rank_of(b), b.device);
    });
    for (const GpuTrace& trace : traces_) {
      numbers_.push_back(rank_of(trace));
      names_.push_back(fmt::format("rank {}{}", rank_of(trace),
                                   devices[trace.source] > 1 ? fmt::format(" GPU {}", trace.device) : ""));
      for (const std::string& note : trace.notes) out_.notes.push_back(fmt::format("{}: {}", names_.back(), note));
    }
  }

  void choose_steps() {
    std::set<std::int64_t> warm_ups;
    for (const GpuTrace& trace : traces_) {
      std::vector<Duration> others;
      for (std::size_t s = 1; s < trace.steps.size(); ++s) others.push_back(trace.steps[s].end - trace.steps[s].begin);
      if (all_steps_ || others.size() < 2) continue;
      const ProfiledStep& first = trace.steps[0];
      if (to_seconds(first.end - first.begin) > kLongWarmUp * to_seconds(median(others))) warm_ups.insert(first.number);
    }
    for (const GpuTrace& trace : traces_) {
      keep_.emplace_back();
      for (const ProfiledStep& step : trace.steps) keep_.back().push_back(warm_ups.contains(step.number) ? 0 : 1);
    }
    for (const std::int64_t step : warm_ups) {
      out_.notes.push_back(
          fmt::format("step {} took over {} times the median of the others: a warm-up, left out "
                      "(--all-steps)",
                      step, kLongWarmUp));
    }
  }

  bool is_kept(std::size_t trace, const GpuKernel& kernel) const {
    return kernel.step >= 0 && keep_[trace][to_size(kernel.step)] != 0;
  }

  void add_rank(std::size_t t) {
    ProfiledRank rank{.name = names_[t], .source = traces_[t].source, .rank = numbers_[t]};
    const std::vector<Breakdown> all = breakdowns(traces_[t]);
    for (std::size_t s = 0; s < all.size(); ++s) {
      if (keep_[t][s] == 0) continue;
      rank.steps.push_back(traces_[t].steps[s].number);
      rank.breakdowns.push_back(all[s]);
      rank.sum += all[s];
    }
    for (const GpuKernel& kernel : traces_[t].kernels) {
      if (!is_kept(t, kernel)) continue;
      ++rank.kernels;
      rank.class_s[to_size(static_cast<int>(traces_[t].name_of(kernel).kind))] += to_seconds(kernel.end - kernel.start);
    }
    out_.ranks.push_back(std::move(rank));
  }

  void add_kernels() {
    std::map<std::tuple<std::string, GpuKernelClass, std::string>, KernelRow> rows;
    std::map<std::string, KernelRow> classes;
    for (std::size_t t = 0; t < traces_.size(); ++t) {
      std::vector<KernelRow> of_trace(traces_[t].names.size());
      for (const GpuKernel& kernel : traces_[t].kernels) {
        if (!is_kept(t, kernel)) continue;
        ++of_trace[to_size(kernel.name)].count;
        of_trace[to_size(kernel.name)].total_s += to_seconds(kernel.end - kernel.start);
      }
      for (std::size_t n = 0; n < of_trace.size(); ++n) {
        const KernelName& name = traces_[t].names[n];
        KernelRow& row = rows[{name.name, name.kind, name.collective}];
        KernelRow& all = classes[name.collective.empty() ? std::string(name_of(name.kind)) : name.collective];
        for (KernelRow* each : {&row, &all}) {
          each->name = name.name;
          each->kind = name.kind;
          each->collective = name.collective;
          each->count += of_trace[n].count;
          each->total_s += of_trace[n].total_s;
        }
        out_.kernel_s += of_trace[n].total_s;
      }
    }
    for (auto& [key, row] : rows) {
      if (row.count > 0) out_.kernels.push_back(std::move(row));
    }
    for (auto& [name, row] : classes) {
      if (row.count > 0) out_.classes.emplace_back(name, std::move(row));
    }
    std::stable_sort(out_.kernels.begin(), out_.kernels.end(),
                     [](const KernelRow& a, const KernelRow& b) { return a.total_s > b.total_s; });
    std::stable_sort(out_.classes.begin(), out_.classes.end(),
                     [](const auto& a, const auto& b) { return a.second.total_s > b.second.total_s; });
  }

  // The rank that the others wait for most, and in what it exceeds the median of the others most.
  void find_slowest() {
    const auto slowest = std::max_element(out_.ranks.begin(), out_.ranks.end(),
                                          [](const auto& a, const auto& b) { return a.waits.keeps < b.waits.keeps; });
    if (to_seconds(slowest->waits.keeps) < 0.001 * to_seconds(slowest->sum.span)) return;
    const auto mean = [](const ProfiledRank& rank, double seconds) {
      return seconds / static_cast<double>(std::max<std::size_t>(rank.steps.size(), 1));
    };
    const StepUnit unit = unit_of(mean(*slowest, to_seconds(slowest->sum.span)));
    std::pair<double, std::string> most{0, "none of its times exceeds those of the others: it starts later"};
    const auto compare = [&](const std::string& what, const auto& seconds_of) {
      std::vector<double> others;
      for (const ProfiledRank& rank : out_.ranks) {
        if (&rank != &*slowest) others.push_back(seconds_of(rank));
      }
      const double excess = seconds_of(*slowest) - lower_median(std::move(others));
      if (excess > most.first)
        most = {excess,
                fmt::format("{} takes {} {} longer than on the median rank", what, unit.text(excess), unit.name)};
    };
    for (int kind = 0; kind < kNumKernelClasses; ++kind) {
      const auto of = static_cast<GpuKernelClass>(kind);
      if (of == GpuKernelClass::communication) continue;
      compare(std::string(name_of(of)),
              [&](const ProfiledRank& rank) { return mean(rank, rank.class_s[to_size(kind)]); });
    }
    compare("idle time until kernels are launched",
            [&](const ProfiledRank& rank) { return mean(rank, to_seconds(rank.sum.idle_for_host)); });
    out_.slowest = fmt::format("{}, for which the others wait {} {} per step; {}", slowest->name,
                               unit.text(mean(*slowest, to_seconds(slowest->waits.keeps))), unit.name, most.second);
  }

  std::vector<GpuTrace> traces_;
  bool all_steps_;
  std::vector<std::int64_t> numbers_;
  std::vector<std::string> names_;
  std::vector<std::vector<char>> keep_;  // by trace and step
  ProfileAnalysis out_;
};

}  // namespace

ProfileAnalysis analyse_profile(std::vector<GpuTrace> traces, bool all_steps) {
  return ProfileAnalyst(std::move(traces), all_steps).analysis();
}

}  // namespace sluice::tools
