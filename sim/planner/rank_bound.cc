#include "sim/planner/rank_bound.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <set>
#include <span>

#include "model/to_size.h"

namespace sluice::sim {
namespace {

constexpr std::int64_t kNoBytes = std::numeric_limits<std::int64_t>::max();

std::size_t hash_of(std::span<const std::int32_t> counts) {
  std::uint64_t hash = 0;
  for (const std::int32_t count : counts) {
    hash = (hash ^ static_cast<std::uint32_t>(count)) * 0x9E37'79B9'7F4A'7C15U;
    hash ^= hash >> 32U;
  }
  return hash;
}

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
      feeds_(problem_.groups.size()),
      least_kept_(kNoBytes),
      buckets_(1024, -1),
      starts_(problem_.groups.size()),
      earliest_(problem_.groups.size()) {
  std::vector<std::int64_t> enabled;
  for (std::size_t g = 0; g < problem_.groups.size(); ++g) {
    const RankProblem::Group& group = problem_.groups[g];
    enabled.push_back(group.duration);
    if (group.behind >= 0) feeds_[group.behind].push_back(g);
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
  for (State* state : {&state_, &next_}) {
    state->counts.assign(problem_.groups.size() + problem_.limit.size(), 0);
    state->times.assign(problem_.limit.size(), 0);
    state->first.resize(problem_.groups.size());
    state->held.assign(problem_.limit.size(), 0);
  }
  add();
}

std::int64_t IdleSearch::extend(std::int64_t most_orders) {
  std::int64_t extended = 0;
  for (; extended < most_orders && !exact(); ++extended) {
    const Partial& partial = partials_[open_.top().partial];
    extended_ = open_.top().bound;
    open_.pop();
    if (partial.dropped) continue;
    load(partial);
    extend();
  }
  return extended;
}

// Positions of the times of each group.
void IdleSearch::place_groups(State& state) const {
  std::size_t at = problem_.limit.size();
  for (std::size_t g = 0; g < problem_.groups.size(); ++g) {
    state.first[g] = at;
    const int behind = problem_.groups[g].behind;
    if (behind >= 0) at += to_size(state.counts[behind] - state.counts[g]);
  }
  state.times.resize(at);
}

void IdleSearch::load(const Partial& partial) {
  const std::int32_t* counts = &counts_[ops_[partial.ops].counts];
  std::copy_n(counts, state_.counts.size(), state_.counts.begin());
  place_groups(state_);
  std::copy_n(times_.begin() + static_cast<std::ptrdiff_t>(partial.times), state_.times.size(), state_.times.begin());
  std::fill(state_.held.begin(), state_.held.end(), 0);
  state_.work = 0;
  for (std::size_t g = 0; g < problem_.groups.size(); ++g) {
    const RankProblem::Group& group = problem_.groups[g];
    state_.held[group.machine] += group.keeps * counts[g];
    if (group.machine == 0) state_.work += group.duration * counts[g];
  }
}

std::int64_t IdleSearch::start_of(std::size_t g) const {
  const RankProblem::Group& group = problem_.groups[g];
  const std::int32_t j = state_.counts[g];
  if (j == problem_.microbatches || state_.held[group.machine] + group.takes > problem_.limit[group.machine])
    return until_;
  for (const int before : group.after) {
    if (state_.counts[before] <= j) return until_;
  }
  if (group.behind < 0) return std::min(std::max(state_.times[group.machine], group.heads[j]), until_);
  return state_.counts[group.behind] <= j ? until_ : std::min(state_.times[state_.first[g]], until_);
}

void IdleSearch::extend() {
  best_ = std::min(best_, until_ - state_.work);  // if it idles from now on
  // The machine on which an op may end first runs its next op, or waits for an arrival.
  const std::size_t groups = problem_.groups.size();
  std::size_t first = groups;
  for (std::size_t g = 0; g < groups; ++g) {
    starts_[g] = start_of(g);
    if (starts_[g] == until_ || state_.counts[groups + to_size(problem_.groups[g].machine)] != 0) continue;
    const auto end = [&](std::size_t h) { return starts_[h] + problem_.groups[h].duration; };
    if (first == groups || end(g) < end(first)) first = g;
  }
  if (first == groups) return;
  const int machine = problem_.groups[first].machine;
  std::int64_t filled = until_;  // the earliest end of an op that takes no memory: it may run in each gap that fits it
  for (std::size_t g = 0; g < groups; ++g) {
    const RankProblem::Group& group = problem_.groups[g];
    if (group.machine == machine && group.keeps <= 0 && group.duration > 0) {
      filled = std::min(filled, starts_[g] + group.duration);
    }
  }
  for (std::size_t g = 0; g < groups; ++g) {
    const RankProblem::Group& group = problem_.groups[g];
    if (group.machine != machine || starts_[g] == until_) continue;
    if (starts_[g] >= filled && starts_[g] > state_.times[machine]) continue;
    if (machine == 0 && starts_[g] + group.duration >= until_) {
      best_ = std::min(best_, starts_[g] - state_.work);
      continue;
    }
    run(g, starts_[g]);
    add();
  }
  if (problem_.limit.size() == 1 || starts_[first] + problem_.groups[first].duration >= filled) return;
  next_ = state_;
  next_.counts[groups + to_size(machine)] = 1;
  add();
}

// The state after the next op of a group.
void IdleSearch::run(std::size_t g, std::int64_t start) {
  const auto& groups = problem_.groups;
  const int machine = groups[g].machine;
  const std::int64_t end = start + groups[g].duration;
  next_.counts = state_.counts;
  ++next_.counts[g];
  for (const std::size_t fed : feeds_[g]) next_.counts[groups.size() + to_size(groups[fed].machine)] = 0;
  place_groups(next_);
  std::copy_n(state_.times.begin(), problem_.limit.size(), next_.times.begin());
  next_.times[machine] = end;
  for (std::size_t h = 0; h < groups.size(); ++h) {
    const int behind = groups[h].behind;
    if (behind < 0) continue;
    std::size_t from = state_.first[h] + (h == g ? 1 : 0);
    std::size_t to = next_.first[h];
    const std::size_t last = state_.first[h] + to_size(state_.counts[behind] - state_.counts[h]);
    const std::int64_t earliest = groups[h].machine == machine ? end : 0;
    for (; from < last; ++from, ++to) next_.times[to] = std::max(state_.times[from], earliest);
    if (to_size(behind) == g) {
      next_.times[to] =
          std::max({end + groups[h].delay, groups[h].heads[state_.counts[g]], next_.times[groups[h].machine]});
    }
  }
  next_.held = state_.held;
  next_.held[machine] += groups[g].keeps;
  next_.work = state_.work + (machine == 0 ? groups[g].duration : 0);
}

std::int32_t IdleSearch::ops_of(const std::vector<std::int32_t>& counts) {
  if (ops_.size() >= buckets_.size()) grow_buckets();
  const std::size_t bucket = hash_of(counts) % buckets_.size();
  for (std::int32_t i = buckets_[bucket]; i >= 0; i = ops_[i].next) {
    if (std::equal(counts.begin(), counts.end(), counts_.begin() + static_cast<std::ptrdiff_t>(ops_[i].counts))) {
      return i;
    }
  }
  ops_.push_back({.counts = counts_.size(), .newest = -1, .next = buckets_[bucket]});
  counts_.insert(counts_.end(), counts.begin(), counts.end());
  return buckets_[bucket] = static_cast<std::int32_t>(ops_.size()) - 1;
}

void IdleSearch::grow_buckets() {
  buckets_.assign(2 * buckets_.size(), -1);
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    std::int32_t& bucket =
        buckets_[hash_of(std::span(counts_).subspan(ops_[i].counts, next_.counts.size())) % buckets_.size()];
    ops_[i].next = bucket;
    bucket = static_cast<std::int32_t>(i);
  }
}

void IdleSearch::add() {
  const std::int32_t ops = ops_of(next_.counts);
  const std::size_t size = next_.times.size();
  // Whether the first one is at least as good.
  const auto covers = [size](const std::int64_t* one, const std::int64_t* other) {
    for (std::size_t i = 0; i < size; ++i) {
      if (one[i] > other[i]) return false;
    }
    return true;
  };
  for (std::int32_t i = ops_[ops].newest; i >= 0; i = partials_[i].older) {
    if (covers(&times_[partials_[i].times], next_.times.data())) return;
  }
  std::int32_t* link = &ops_[ops].newest;
  while (*link >= 0) {
    Partial& other = partials_[*link];
    if (covers(next_.times.data(), &times_[other.times])) {
      other.dropped = true;
      *link = other.older;
    } else {
      link = &other.older;
    }
  }
  const std::int64_t bound = std::max(extended_, next_.times[0] - next_.work + least_later());
  if (bound >= best_) return;
  const auto index = static_cast<std::int32_t>(partials_.size());
  partials_.push_back({.times = times_.size(), .ops = ops, .older = ops_[ops].newest});
  times_.insert(times_.end(), next_.times.begin(), next_.times.end());
  ops_[ops].newest = index;
  open_.push({.bound = bound, .end = next_.times[0], .partial = index});
}

// The most time for which ops run that take `bytes` in total, and those that they enable.
std::int64_t IdleSearch::enabled_by(std::int64_t bytes) const {
  if (least_kept_ == kNoBytes) return 0;
  const std::int64_t ops = std::min<std::int64_t>(bytes / least_kept_, problem_.microbatches * std::ssize(enabled_));
  const double by_bytes = static_cast<double>(bytes) * most_per_byte_ * (1 + 1e-9) + 1;
  const std::int64_t by_ops = ops * most_enabled_;
  return by_bytes < static_cast<double>(by_ops) ? static_cast<std::int64_t>(by_bytes) : by_ops;
}

// A lower bound of the idle time between the end of `next_` and `until_`. Before the earliest time at which a
// microbatch that has not begun runs another op, the rank runs at most the ops that take memory for which it has or
// gets room, those that they enable, and the others of the microbatches that have begun, from their earliest starts on.
std::int64_t IdleSearch::least_later() {
  const auto& groups = problem_.groups;
  int begun = 0;  // and the first one that has not
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].machine == 0) begun = std::max(begun, next_.counts[g]);
  }
  const int last = std::min(begun, problem_.microbatches - 1);
  std::int64_t until = until_;
  pending_.clear();
  releases_.clear();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const RankProblem::Group& group = groups[g];
    earliest_[g].clear();
    std::int64_t free = next_.times[group.machine];
    for (int j = next_.counts[g]; j <= last; ++j) {
      std::int64_t start = std::max(free, group.heads[j]);
      bool waits = false;  // for an op that takes memory
      for (const int before : group.after) {
        if (j < next_.counts[before]) continue;
        start = std::max(start, earliest_[before][j - next_.counts[before]] + groups[before].duration);
        waits = waits || groups[before].keeps > 0;
      }
      if (group.behind >= 0) {
        const int ready = next_.counts[group.behind];
        const std::int64_t arrival =
            j < ready ? next_.times[next_.first[g] + to_size(j - next_.counts[g])]
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
      pending_.emplace_back(start, group.duration);
      if (group.keeps < 0) releases_.emplace_back(free, -group.keeps);
    }
  }
  std::sort(releases_.begin(), releases_.end());
  std::int64_t most = 0;
  std::int64_t room = problem_.limit[0] - next_.held[0];
  for (std::size_t i = 0; i <= releases_.size(); ++i) {
    const std::int64_t time = i < releases_.size() ? std::min(until, releases_[i].first) : until;
    std::int64_t idle = time - next_.times[0] - enabled_by(room);
    if (idle > most) {
      for (const auto& [start, duration] : pending_) idle -= std::clamp<std::int64_t>(time - start, 0, duration);
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
