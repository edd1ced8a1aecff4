#include "traces/profile/matched_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "model/median.h"
#include "model/to_size.h"

namespace sluice::traces {
namespace {

constexpr Duration kClocksAgree = std::chrono::microseconds(50);
constexpr std::string_view kPointToPoint = "send/receive";

bool is_point_to_point(const std::string& collective) {
  return collective == kPointToPoint || collective == "send" || collective == "receive";
}

// The ranks in "name [0, 4]"; empty if they are not all there.
std::vector<std::int64_t> ranks_of_group(std::string_view group) {
  std::vector<std::int64_t> ranks;
  const std::size_t open = group.rfind('[');
  if (open == std::string_view::npos || !group.ends_with(']')) return ranks;
  for (std::size_t at = open + 1; at < group.size() - 1;) {
    std::int64_t rank = 0;
    const auto [end, error] = std::from_chars(group.data() + at, group.data() + group.size() - 1, rank);
    if (error != std::errc{}) return {};
    ranks.push_back(rank);
    at = to_size(end - group.data());
    while (at < group.size() - 1 && (group[at] == ',' || group[at] == ' ')) ++at;
  }
  return ranks;
}

// What calls that belong together have in common.
struct CallKey {
  std::int32_t group = -1;  // of all traces; -1: not recorded
  std::string_view name;    // empty with a number: a group numbers calls of all kinds
  std::int64_t step = -1;
  std::int64_t number = -1;  // recorded
  std::int64_t source = -1;  // of sends and receives
  std::int64_t destination = -1;
  auto operator<=>(const CallKey&) const = default;  // NOLINT(modernize-use-nullptr)
};

class CallMatcher {
 public:
  CallMatcher(const std::vector<GpuTrace>& traces, const std::vector<std::int64_t>& ranks)
      : traces_(traces), ranks_(ranks) {}

  MatchedCalls matched() {
    for (std::size_t t = 0; t < traces_.size(); ++t) collect(static_cast<std::int32_t>(t));
    for (const auto& [key, members] : members_) match(key, members);
    // In the order of their first members, which does not depend on the order of keys.
    std::stable_sort(out_.calls.begin(), out_.calls.end(), [&](const MatchedCall& a, const MatchedCall& b) {
      return std::pair(a.members[0].trace, a.members[0].kernel) < std::pair(b.members[0].trace, b.members[0].kernel);
    });
    write_notes();
    return std::move(out_);
  }

 private:
  using Members = std::map<std::int32_t, std::vector<std::int32_t>>;  // kernels by trace, by start

  void collect(std::int32_t trace) {
    const GpuTrace& from = traces_[to_size(trace)];
    std::vector<std::int32_t> group_of;
    for (const std::string& group : from.groups) {
      const auto [found, is_new] = groups_.try_emplace(group, static_cast<std::int32_t>(groups_.size()));
      if (is_new) group_ranks_.push_back(ranks_of_group(group));
      group_of.push_back(found->second);
    }
    for (std::size_t k = 0; k < from.kernels.size(); ++k) {
      const GpuKernel& kernel = from.kernels[k];
      const KernelName& name = from.name_of(kernel);
      if (name.kind != GpuKernelClass::communication) continue;
      const CollectiveCall call = kernel.call < 0 ? CollectiveCall{} : from.calls[to_size(kernel.call)];
      CallKey key{.group = call.group < 0 ? -1 : group_of[to_size(call.group)],
                  .name = name.collective,
                  .step = kernel.step >= 0 ? from.steps[to_size(kernel.step)].number : -1};
      if (is_point_to_point(name.collective)) {
        if (!set_peers(key, call, name.collective, trace)) {
          ++out_.num_unmatched_sends;
          continue;
        }
      } else if (call.number >= 0 && key.group >= 0) {
        key = {.group = key.group, .name = {}, .step = -1, .number = call.number};
      }
      members_[key][trace].push_back(static_cast<std::int32_t>(k));
    }
  }

  // Returns false if it is not known which ranks exchange the message.
  bool set_peers(CallKey& key, const CollectiveCall& call, const std::string& collective, std::int32_t trace) {
    const std::int64_t own = ranks_[to_size(trace)];
    key.name = kPointToPoint;
    key.source = call.source;
    key.destination = call.destination;
    if (key.source < 0 && (collective == "send" || (key.destination >= 0 && key.destination != own))) key.source = own;
    if (key.destination < 0 && (collective == "receive" || (key.source >= 0 && key.source != own)))
      key.destination = own;
    if (key.source >= 0 && key.destination >= 0) return true;
    std::vector<std::int64_t> group = key.group >= 0 ? group_ranks_[to_size(key.group)] : std::vector<std::int64_t>{};
    if (group.size() != 2 && traces_.size() == 2 && (call.size == 2 || key.group < 0)) group = {ranks_[0], ranks_[1]};
    if (group.size() != 2 || (group[0] != own && group[1] != own)) return false;
    const std::int64_t other = group[0] == own ? group[1] : group[0];
    // Kernels that send and receive have no direction: both ranks have the same key.
    const bool both = collective == kPointToPoint;
    key.source = both ? std::min(own, other) : collective == "send" ? own : other;
    key.destination = both ? std::max(own, other) : collective == "send" ? other : own;
    return true;
  }

  void match(const CallKey& key, const Members& members) {
    std::int64_t least = members.size() > 1 ? INT64_MAX : 0;
    std::int64_t most = 0;
    std::int64_t total = 0;
    for (const auto& [trace, kernels] : members) {
      least = std::min(least, std::ssize(kernels));
      most = std::max(most, std::ssize(kernels));
      total += std::ssize(kernels);
    }
    const bool messages = key.name == kPointToPoint;
    // Without a group, kernels may be of any communicator: only equal numbers on all ranks allow a match.
    const bool unknown = key.group < 0 && !messages && (members.size() < traces_.size() || least != most);
    if (unknown || least == 0) {
      const bool alone = members.size() == 1 && !messages && !unknown && is_alone(key);
      (messages ? out_.num_unmatched_sends : alone ? out_.num_alone : out_.num_unmatched) += total;
      return;
    }
    (messages ? out_.num_unmatched_sends : out_.num_unmatched) += total - least * std::ssize(members);
    for (std::size_t i = 0; i < to_size(least); ++i) {
      MatchedCall call;
      for (const auto& [trace, kernels] : members) call.members.push_back({trace, kernels[i]});
      const KernelOfTrace& first = call.members.front();
      const GpuTrace& trace = traces_[to_size(first.trace)];
      call.name =
          messages ? std::string(kPointToPoint) : trace.name_of(trace.kernels[to_size(first.kernel)]).collective;
      out_.calls.push_back(std::move(call));
    }
  }

  // Whether no other rank of the group was recorded.
  bool is_alone(const CallKey& key) const {
    const std::vector<std::int64_t>& group = group_ranks_[to_size(key.group)];
    if (group.empty()) return true;
    const auto recorded = [&](std::int64_t rank) {
      return std::find(ranks_.begin(), ranks_.end(), rank) != ranks_.end();
    };
    return std::count_if(group.begin(), group.end(), recorded) <= 1;
  }

  void write_notes() {
    if (out_.num_unmatched > 0) {
      out_.notes.push_back(
          fmt::format("{} kernels of collectives were not matched: other ranks of their groups have "
                      "fewer, or their groups are not recorded",
                      out_.num_unmatched));
    }
    if (out_.num_unmatched_sends > 0) {
      out_.notes.push_back(fmt::format(
          "{} kernels that send or receive were not matched: their partner is missing, or its rank is not recorded",
          out_.num_unmatched_sends));
    }
    if (out_.num_alone > 0) {
      out_.notes.push_back(
          fmt::format("{} kernels of collectives have groups of which no other rank was recorded", out_.num_alone));
    }
  }

  const std::vector<GpuTrace>& traces_;
  const std::vector<std::int64_t>& ranks_;
  std::map<std::string, std::int32_t> groups_;
  std::vector<std::vector<std::int64_t>> group_ranks_;
  std::map<CallKey, Members> members_;
  MatchedCalls out_;
};

// The time to add to each clock so that pairs of traces differ by the medians of `differences`: along a spanning tree
// of the pairs with most calls. Nullopt for traces that share no calls with the first ones.
std::vector<std::optional<Duration>> clock_shifts(
    std::size_t num_traces, const std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Duration>>& differences) {
  using Edge = std::tuple<std::int64_t, std::int32_t, std::int32_t, Duration>;
  std::vector<Edge> edges;
  for (const auto& [pair, values] : differences) {
    edges.emplace_back(-std::ssize(values), pair.first, pair.second, lower_median(values));
  }
  std::sort(edges.begin(), edges.end());
  std::vector<std::optional<Duration>> shifts(num_traces);
  shifts[0] = Duration::zero();
  // As Prim's algorithm: the edge with most calls that leaves the tree.
  for (bool grown = true; grown;) {
    grown = false;
    for (const auto& [calls, a, b, difference] : edges) {
      std::optional<Duration>& first = shifts[to_size(a)];
      std::optional<Duration>& second = shifts[to_size(b)];
      if (first.has_value() == second.has_value()) continue;
      if (first) {
        second = *first - difference;
      } else {
        first = *second + difference;
      }
      grown = true;
      break;
    }
  }
  return shifts;
}

void shift(GpuTrace& trace, Duration by) {
  for (GpuKernel& kernel : trace.kernels) {
    kernel.start += by;
    kernel.end += by;
    if (kernel.launched != Duration::min()) kernel.launched += by;
  }
  for (ProfiledStep& step : trace.steps) step.begin += by, step.end += by;
}

}  // namespace

MatchedCalls matched_calls(const std::vector<GpuTrace>& traces, const std::vector<std::int64_t>& ranks) {
  return CallMatcher(traces, ranks).matched();
}

void align_clocks_by_calls(std::vector<GpuTrace>& traces, MatchedCalls& matched) {
  // By pair of traces: end in the second minus end in the first.
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Duration>> differences;
  const auto end_of = [&](const KernelOfTrace& member) {
    return traces[to_size(member.trace)].kernels[to_size(member.kernel)].end;
  };
  for (const MatchedCall& call : matched.calls) {
    if (call.name == "broadcast" || call.name == "reduce") continue;
    for (std::size_t i = 1; i < call.members.size(); ++i) {
      const KernelOfTrace& first = call.members[0];
      differences[{first.trace, call.members[i].trace}].push_back(end_of(call.members[i]) - end_of(first));
    }
  }
  const std::vector<std::optional<Duration>> shifts = clock_shifts(traces.size(), differences);
  const std::int64_t unknown = std::count(shifts.begin(), shifts.end(), std::nullopt);
  Duration most{};
  for (const auto& [pair, values] : differences) most = std::max(most, std::chrono::abs(lower_median(values)));
  if (unknown > 0) {
    matched.notes.push_back(fmt::format(
        "{} of {} clocks are as recorded: no calls are matched with those of the first rank", unknown, traces.size()));
  }
  if (most <= kClocksAgree) return;
  for (std::size_t t = 0; t < traces.size(); ++t) shift(traces[t], shifts[t].value_or(Duration::zero()));
  std::vector<Duration> rest;
  for (const auto& [pair, values] : differences) {
    const auto& first = shifts[to_size(pair.first)];
    const auto& second = shifts[to_size(pair.second)];
    if (!first || !second) continue;
    for (const Duration value : values) rest.push_back(std::chrono::abs(value + *second - *first));
  }
  std::sort(rest.begin(), rest.end());
  matched.notes.push_back(fmt::format(
      "clocks of ranks differed by up to {:.3f} ms and were aligned by the ends of collectives, sends and receives; of "
      "these ends, 95 % now agree to within {:.3f} ms",
      to_seconds(most) * 1e3, rest.empty() ? 0.0 : to_seconds(rest[(rest.size() - 1) * 95 / 100]) * 1e3));
}

std::vector<CallWaits> call_waits(const std::vector<GpuTrace>& traces, const MatchedCalls& matched,
                                  const std::vector<std::vector<char>>& keep) {
  std::vector<CallWaits> out(traces.size());
  for (const MatchedCall& call : matched.calls) {
    const auto kernel_of = [&](const KernelOfTrace& member) -> const GpuKernel& {
      return traces[to_size(member.trace)].kernels[to_size(member.kernel)];
    };
    const auto last = std::max_element(call.members.begin(), call.members.end(), [&](const auto& a, const auto& b) {
      return kernel_of(a).start < kernel_of(b).start;
    });
    const GpuKernel& latest = kernel_of(*last);
    if (latest.step < 0 || keep[to_size(last->trace)][to_size(latest.step)] == 0) continue;
    Duration sum{};
    for (const KernelOfTrace& member : call.members) {
      const GpuKernel& kernel = kernel_of(member);
      const Duration wait = std::min(latest.start - kernel.start, kernel.end - kernel.start);
      out[to_size(member.trace)].waits += wait;
      ++out[to_size(member.trace)].calls;
      sum += wait;
    }
    ++out[to_size(last->trace)].last;
    out[to_size(last->trace)].keeps += sum / (std::ssize(call.members) - 1);
  }
  return out;
}

}  // namespace sluice::traces
