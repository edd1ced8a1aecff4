#include "sim/planner/rank_bound.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <set>

#include "model/to_size.h"

namespace sluice::sim {
namespace {

constexpr std::int64_t kNoBytes = std::numeric_limits<std::int64_t>::max();

}  // namespace

std::int64_t RankProblem::work() const {
  std::int64_t sum = 0;
  for (const Group& group : groups) sum += group.machine == 0 ? group.duration : 0;
  return sum * microbatches;
}

RankProblem RankProblem::reversed(const std::vector<std::vector<std::int64_t>>& tails) const {
  RankProblem out{.microbatches = microbatches, .limit = limit, .groups = {}};
  const auto mirror = [&](std::size_t g) { return groups.size() - 1 - g; };
  out.groups.resize(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Group& group = out.groups[mirror(g)];
    group.machine = groups[g].machine;
    group.duration = groups[g].duration;
    group.takes = groups[g].takes - groups[g].keeps;
    group.keeps = -groups[g].keeps;
    group.heads.assign(tails[g].rbegin(), tails[g].rend());
    for (const int before : groups[g].after) {
      out.groups[mirror(to_size(before))].after.push_back(static_cast<int>(mirror(g)));
    }
    if (groups[g].behind < 0) continue;
    Group& before = out.groups[mirror(to_size(groups[g].behind))];
    before.behind = static_cast<int>(mirror(g));
    before.delay = groups[g].delay;
  }
  return out;
}

IdleSearch::IdleSearch(RankProblem problem, std::int64_t until, std::int64_t least)
    : problem_(std::move(problem)),
      until_(until),
      least_(least),
      best_(until),
      enabled_(problem_.groups.size(), false),
      least_kept_(kNoBytes),
      earliest_(problem_.groups.size()) {
  std::vector<std::int64_t> enabled;
  for (std::size_t g = 0; g < problem_.groups.size(); ++g) {
    const RankProblem::Group& group = problem_.groups[g];
    enabled.push_back(group.duration);
    if (group.keeps > 0 && group.machine == 0) least_kept_ = std::min(least_kept_, group.keeps);
    const auto takes_memory = [&](int before) { return problem_.groups[before].keeps > 0; };
    const auto before = std::find_if(group.after.begin(), group.after.end(), takes_memory);
    enabled_[g] = group.keeps == 0 && before != group.after.end();
    if (enabled_[g]) enabled[*before] += group.duration;
  }
  for (std::size_t g = 0; g < problem_.groups.size(); ++g) {
    const std::int64_t keeps = problem_.groups[g].keeps;
    if (keeps <= 0 || problem_.groups[g].machine != 0) continue;
    most_enabled_ = std::max(most_enabled_, enabled[g]);
    most_per_byte_ = std::max(most_per_byte_, static_cast<double>(enabled[g]) / static_cast<double>(keeps));
  }
  Partial none;
  none.run.resize(problem_.groups.size(), 0);
  none.arrived.resize(problem_.groups.size());
  none.clock.resize(problem_.limit.size(), 0);
  none.held.resize(problem_.limit.size(), 0);
  none.defers.resize(problem_.limit.size(), 0);
  add(std::move(none));
}

std::int64_t IdleSearch::extend(std::int64_t most_orders) {
  std::int64_t extended = 0;
  for (; extended < most_orders && !exact(); ++extended) {
    const std::size_t index = std::get<2>(open_.top());
    extended_ = std::get<0>(open_.top());
    open_.pop();
    if (dropped_[index]) continue;
    const Partial partial = partials_[index];
    extend(partial);
  }
  return extended;
}

std::int64_t IdleSearch::start_of(const Partial& partial, std::size_t g) const {
  const RankProblem::Group& group = problem_.groups[g];
  const int j = partial.run[g];
  if (j == problem_.microbatches || partial.held[group.machine] + group.takes > problem_.limit[group.machine])
    return until_;
  for (const int before : group.after) {
    if (partial.run[before] <= j) return until_;
  }
  std::int64_t start = std::max(partial.clock[group.machine], group.heads[j]);
  if (group.behind >= 0) {
    if (partial.arrived[g].empty()) return until_;
    start = std::max(start, partial.arrived[g].front());
  }
  return std::min(start, until_);
}

void IdleSearch::extend(const Partial& partial) {
  best_ = std::min(best_, until_ - partial.work);  // if it idles from now on
  // The machine on which an op may end first runs its next op, or waits for an arrival.
  std::vector<std::int64_t> starts;
  std::size_t first = problem_.groups.size();
  for (std::size_t g = 0; g < problem_.groups.size(); ++g) {
    starts.push_back(start_of(partial, g));
    if (starts[g] == until_ || partial.defers[problem_.groups[g].machine] != 0) continue;
    const auto end = [&](std::size_t h) { return starts[h] + problem_.groups[h].duration; };
    if (first == problem_.groups.size() || end(g) < end(first)) first = g;
  }
  if (first == problem_.groups.size()) return;
  const int machine = problem_.groups[first].machine;
  std::int64_t filled = until_;  // the earliest end of an op that takes no memory: it may run in each gap that fits it
  for (std::size_t g = 0; g < problem_.groups.size(); ++g) {
    const RankProblem::Group& group = problem_.groups[g];
    if (group.machine == machine && group.keeps <= 0 && group.duration > 0) {
      filled = std::min(filled, starts[g] + group.duration);
    }
  }
  for (std::size_t g = 0; g < problem_.groups.size(); ++g) {
    const RankProblem::Group& group = problem_.groups[g];
    if (group.machine != machine || starts[g] == until_) continue;
    if (starts[g] >= filled && starts[g] > partial.clock[machine]) continue;
    Partial next = partial;
    next.clock[machine] = starts[g] + group.duration;
    if (machine == 0 && next.clock[0] >= until_) {
      best_ = std::min(best_, starts[g] - partial.work);
      continue;
    }
    if (machine == 0) next.work += group.duration;
    next.held[machine] += group.keeps;
    ++next.run[g];
    if (group.behind >= 0) next.arrived[g].erase(next.arrived[g].begin());
    for (std::size_t h = 0; h < problem_.groups.size(); ++h) {
      if (problem_.groups[h].behind != static_cast<int>(g)) continue;
      next.arrived[h].push_back(next.clock[machine] + problem_.groups[h].delay);
      next.defers[problem_.groups[h].machine] = 0;
    }
    add(std::move(next));
  }
  if (partial.clock.size() == 1 || starts[first] + problem_.groups[first].duration >= filled) return;
  Partial next = partial;
  next.defers[machine] = 1;
  add(std::move(next));
}

// Whether `one` is at least as good as `other`, which has run the same ops.
bool IdleSearch::covers(const Partial& one, const Partial& other) const {
  if (one.defers != other.defers) return false;
  for (std::size_t machine = 0; machine < one.clock.size(); ++machine) {
    if (one.clock[machine] > other.clock[machine]) return false;
  }
  for (std::size_t g = 0; g < one.arrived.size(); ++g) {
    for (std::size_t i = 0; i < one.arrived[g].size(); ++i) {
      if (one.arrived[g][i] > std::max(other.clock[problem_.groups[g].machine], other.arrived[g][i])) return false;
    }
  }
  return true;
}

void IdleSearch::add(Partial partial) {
  std::vector<std::size_t>& same = by_run_[partial.run];
  for (const std::size_t other : same) {
    if (covers(partials_[other], partial)) return;
  }
  std::erase_if(same, [&](std::size_t other) {
    const bool worse = covers(partial, partials_[other]);
    if (worse) dropped_[other] = true;
    return worse;
  });
  const std::int64_t bound = std::max(extended_, partial.clock[0] - partial.work + least_later(partial));
  if (bound >= best_) return;
  same.push_back(partials_.size());
  open_.emplace(bound, -partial.clock[0], partials_.size());
  partials_.push_back(std::move(partial));
  dropped_.push_back(false);
}

// The most time for which ops run that take `bytes` in total, and those that they enable.
std::int64_t IdleSearch::enabled_by(std::int64_t bytes) const {
  if (least_kept_ == kNoBytes) return 0;
  const std::int64_t ops = std::min<std::int64_t>(bytes / least_kept_, problem_.microbatches * std::ssize(enabled_));
  const double by_bytes = static_cast<double>(bytes) * most_per_byte_ * (1 + 1e-9) + 1;
  const std::int64_t by_ops = ops * most_enabled_;
  return by_bytes < static_cast<double>(by_ops) ? static_cast<std::int64_t>(by_bytes) : by_ops;
}

// A lower bound of the idle time between the end of `partial` and `until_`. Before the earliest time at which a
// microbatch that has not begun runs another op, the rank runs at most the ops that take memory for which it has or
// gets room, those that they enable, and the others of the microbatches that have begun, from their earliest starts on.
std::int64_t IdleSearch::least_later(const Partial& partial) {
  const auto& groups = problem_.groups;
  int begun = 0;  // and the first one that has not
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].machine == 0) begun = std::max(begun, partial.run[g]);
  }
  const int last = std::min(begun, problem_.microbatches - 1);
  std::int64_t until = until_;
  ops_.clear();
  releases_.clear();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const RankProblem::Group& group = groups[g];
    earliest_[g].clear();
    std::int64_t free = partial.clock[group.machine];
    for (int j = partial.run[g]; j <= last; ++j) {
      std::int64_t start = std::max(free, group.heads[j]);
      bool waits = false;  // for an op that takes memory
      for (const int before : group.after) {
        if (j < partial.run[before]) continue;
        start = std::max(start, earliest_[before][j - partial.run[before]] + groups[before].duration);
        waits = waits || groups[before].keeps > 0;
      }
      if (group.behind >= 0) {
        const int ready = partial.run[group.behind];
        const std::int64_t arrival =
            j < ready ? partial.arrived[g][j - partial.run[g]]
                      : earliest_[group.behind][j - ready] + groups[group.behind].duration + group.delay;
        start = std::max(start, arrival);
      }
      earliest_[g].push_back(start);
      free = start + group.duration;
      if (group.machine != 0 || group.keeps > 0 || (enabled_[g] && waits)) continue;
      if (j == begun) {
        until = std::min(until, start);
        continue;
      }
      ops_.emplace_back(start, group.duration);
      if (group.keeps < 0) releases_.emplace_back(free, -group.keeps);
    }
  }
  std::sort(releases_.begin(), releases_.end());
  std::int64_t most = 0;
  std::int64_t room = problem_.limit[0] - partial.held[0];
  for (std::size_t i = 0; i <= releases_.size(); ++i) {
    const std::int64_t time = i < releases_.size() ? std::min(until, releases_[i].first) : until;
    std::int64_t idle = time - partial.clock[0] - enabled_by(room);
    if (idle > most) {
      for (const auto& [start, duration] : ops_) idle -= std::clamp<std::int64_t>(time - start, 0, duration);
      most = std::max(most, idle);
    }
    if (time == until) break;
    room += releases_[i].second;
  }
  return most;
}

std::int64_t idle_bound(const std::vector<int>& ranks, int num_ranks, const RanksProblems& problems_of,
                        std::int64_t least, std::int64_t most_orders) {
  struct Search {
    std::vector<int> ranks;  // the bound is of the first one
    bool whole = false;      // `first` is of all of the makespan
    std::int64_t work = 0;
    IdleSearch first;
    IdleSearch second;
    std::int64_t until = 0;
    std::int64_t orders = 0;
    bool followed = false;
    std::int64_t bound() const { return work + first.bound() + second.bound(); }
    bool exact() const { return first.exact() && second.exact(); }
  };
  constexpr std::int64_t kOrders = 500;
  std::deque<Search> searches;
  std::set<std::vector<int>> tried;
  const auto start = [&](const std::vector<int>& of, bool whole, std::int64_t first, std::int64_t second) {
    const auto [problem, reversed] = problems_of(of);
    const std::int64_t until = whole ? least : least / 2;
    searches.push_back({of, whole, problem.work(), IdleSearch(problem, until, first),
                        IdleSearch(reversed, whole ? 0 : until, second), until});
  };
  const auto extend = [&](Search& of) {
    const std::int64_t orders = (of.first.extend(kOrders) + of.second.extend(kOrders)) * std::ssize(of.ranks);
    of.orders += orders;
    most_orders -= orders;
    least = std::max(least, of.bound());
  };
  // Continues from an exact result: with a neighbor of the ranks, and with a longer time.
  const auto follow = [&](Search& of) {
    of.followed = true;
    const auto [low, high] = std::minmax_element(of.ranks.begin(), of.ranks.end());
    for (const int neighbor : {*low - 1, *high + 1}) {
      std::vector<int> more = of.ranks;
      more.push_back(neighbor);
      if (of.whole || neighbor < 0 || neighbor >= num_ranks || !tried.insert(more).second) continue;
      start(more, false, of.first.bound(), of.second.bound());
    }
    if (!of.whole || of.bound() > of.until) start(of.ranks, true, of.first.bound(), 0);
  };
  const std::int64_t half = least / 2;
  for (const int rank : ranks) {
    if (half > 0) start({rank}, false, 0, 0);
  }
  for (Search& of : searches) extend(of);
  for (int turn = 0; most_orders > 0; ++turn) {
    // Alternately the open one with the largest bound and that with the fewest orders.
    Search* best = nullptr;
    Search* next = nullptr;
    for (Search& of : searches) {
      if (best == nullptr || of.bound() > best->bound()) best = &of;
      if (of.exact()) continue;
      const bool better = next == nullptr || (turn % 2 == 0 ? of.bound() > next->bound() : of.orders < next->orders);
      if (better) next = &of;
    }
    for (Search& of : searches) {
      if (of.exact() && !of.followed && of.bound() == best->bound()) {
        follow(of);
        next = &searches.back();
        break;
      }
    }
    if (next == nullptr) break;
    extend(*next);
  }
  return least;
}

}  // namespace sluice::sim
