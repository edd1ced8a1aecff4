#include "sim/planner/cyclic_schedule.h"

#include <algorithm>
#include <array>
#include <set>

#include "model/to_size.h"

namespace sluice::sim {
namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// Periods from the start of each op of a rank to that of each other one, rounded down: its cyclic order.
struct Pattern {
  Zone zone;
  std::vector<std::int64_t> laps;  // by pair of ops a < b
};

// Enumerates the patterns of a rank with a given period that keep its limit.
class RankPatterns {
 public:
  RankPatterns(const CyclicProblem& problem, int rank, std::int64_t period, SearchSteps& steps)
      : problem_(problem), ops_(problem.of_rank[rank]), limit_(problem.limit[rank]), period_(period), steps_(steps) {}

  // `open`: indices of the ops of the rank among which bounds matter. The patterns have no bounds that others include.
  std::vector<Pattern> run(const Zone& bounds, const std::vector<std::size_t>& open) {
    open_ = &open;
    branch(bounds.projected(ops_));
    return std::move(found_);
  }

 private:
  struct Range {
    std::int64_t first = 0;
    std::int64_t last = 0;
  };
  std::int64_t duration(std::size_t x) const { return problem_.ops[ops_[x]].duration; }

  // Of the periods from `a` to `b`.
  Range laps(const Zone& zone, std::size_t a, std::size_t b) const {
    return {-floor_div(-(zone.at(a, b) + duration(b)), period_) - 1, floor_div(-zone.at(b, a) - duration(a), period_)};
  }

  // Whether some order within the zone keeps the limit at the start of each op.
  bool fits(const Zone& zone) const {
    for (std::size_t x = 0; x < ops_.size(); ++x) {
      std::int64_t held = problem_.ops[ops_[x]].takes;
      for (std::size_t y = 0; y < ops_.size(); ++y) {
        if (y == x) continue;
        const Range range = laps(zone, y, x);
        const std::int64_t keeps = problem_.ops[ops_[y]].keeps;
        held += keeps * ((keeps > 0 ? range.first : range.last) + 1);
      }
      if (held > limit_) return false;
    }
    return true;
  }

  bool choose(Zone& zone, std::size_t a, std::size_t b, std::int64_t laps) {
    steps_.spend(1);
    return zone.tighten(a, b, laps * period_ + duration(a)) && zone.tighten(b, a, duration(b) - (laps + 1) * period_);
  }

  void branch(Zone zone) {
    if (steps_.exhausted()) return;
    std::array<std::size_t, 2> pair{};
    Range choices{0, 0};
    for (bool changed = true; changed;) {
      changed = false;
      choices = {0, 0};
      for (std::size_t a = 0; a < ops_.size(); ++a) {
        for (std::size_t b = a + 1; b < ops_.size(); ++b) {
          const Range range = laps(zone, a, b);
          if (range.first > range.last) return;
          if (range.first == range.last) {
            const Zone before = zone;
            if (!choose(zone, a, b, range.first)) return;
            changed = changed || !(before == zone);
          } else if (choices.first == choices.last || range.last - range.first < choices.last - choices.first) {
            choices = range;
            pair = {a, b};
          }
        }
      }
    }
    if (!fits(zone)) return;
    if (choices.first == choices.last) return keep(zone);
    for (std::int64_t lap = choices.first; lap <= choices.last; ++lap) {
      Zone next = zone;
      if (choose(next, pair[0], pair[1], lap)) branch(std::move(next));
    }
  }

  void keep(const Zone& zone) {
    Zone visible = zone.projected(*open_);
    steps_.spend(std::ssize(found_) / 8);
    if (std::any_of(found_.begin(), found_.end(), [&](const Pattern& of) { return of.zone.includes(visible); })) return;
    std::erase_if(found_, [&](const Pattern& of) { return visible.includes(of.zone); });
    Pattern& pattern = found_.emplace_back(Pattern{std::move(visible), {}});
    for (std::size_t a = 0; a < ops_.size(); ++a) {
      for (std::size_t b = a + 1; b < ops_.size(); ++b) pattern.laps.push_back(laps(zone, a, b).first);
    }
  }

  const CyclicProblem& problem_;
  const std::vector<std::size_t>& ops_;
  std::int64_t limit_;
  std::int64_t period_;
  SearchSteps& steps_;
  const std::vector<std::size_t>* open_ = nullptr;
  std::vector<Pattern> found_;
};

// Joins the patterns of all ranks with one period.
class PeriodSearch {
 public:
  PeriodSearch(const CyclicProblem& problem, std::int64_t period, SearchSteps& steps)
      : problem_(problem), period_(period), steps_(steps), bounds_(problem.bounds(period)) {
    const std::int64_t n = std::ssize(problem.ops);
    steps_.spend(n * n * n / 64);
  }

  bool exhausted() const { return steps_.exhausted(); }

  // Returns the laps of each rank of a schedule; nothing if there is none, or if the steps are exhausted.
  std::optional<std::vector<std::vector<std::int64_t>>> run() {
    if (!bounds_) return std::nullopt;
    std::vector<std::size_t> live;
    for (int rank = 0; rank < problem_.num_ranks; ++rank) {
      const std::vector<std::size_t> open = open_of(rank);
      patterns_.push_back(RankPatterns(problem_, rank, period_, steps_).run(*bounds_, open));
      std::vector<std::size_t> next = live_after(rank);
      levels_.push_back(joined(live, next, rank));
      if (exhausted() || levels_.back().empty()) return std::nullopt;
      live = std::move(next);
    }
    std::vector<std::vector<std::int64_t>> laps(to_size(problem_.num_ranks));
    std::size_t state = 0;
    for (std::size_t rank = laps.size(); rank-- > 0;) {
      laps[rank] = patterns_[rank][levels_[rank][state].pattern].laps;
      state = levels_[rank][state].before;
    }
    return laps;
  }

 private:
  struct State {
    Zone zone;  // among live ops
    std::size_t before = 0;
    std::size_t pattern = 0;
  };

  // Ops of ranks up to `rank` with delays to or from those after it.
  std::vector<std::size_t> live_after(int rank) const {
    return ops_with([&](int here, int there) { return here <= rank && there > rank; });
  }
  // Indices among the ops of a rank of those with delays to or from others.
  std::vector<std::size_t> open_of(int rank) const {
    const auto& ops = problem_.of_rank[rank];
    std::vector<std::size_t> open = ops_with([&](int here, int there) { return here == rank && there != rank; });
    for (std::size_t& x : open) x = to_size(std::find(ops.begin(), ops.end(), x) - ops.begin());
    return open;
  }
  template <typename Condition>
  std::vector<std::size_t> ops_with(const Condition& condition) const {
    std::set<std::size_t> found;
    for (const CyclicProblem::Delay& delay : problem_.delays) {
      const int from = problem_.ops[delay.from].rank;
      const int to = problem_.ops[delay.to].rank;
      if (condition(from, to)) found.insert(delay.from);
      if (condition(to, from)) found.insert(delay.to);
    }
    return {found.begin(), found.end()};
  }

  // The states after a rank: each state before it, with each pattern of the rank.
  std::vector<State> joined(const std::vector<std::size_t>& live, const std::vector<std::size_t>& next, int rank) {
    std::vector<std::size_t> own;
    for (const std::size_t i : open_of(rank)) own.push_back(problem_.of_rank[rank][i]);
    std::vector<std::size_t> all = live;
    all.insert(all.end(), own.begin(), own.end());
    // Ops that matter from now on: those of the rank first, then live ones.
    std::vector<std::size_t> kept;
    for (std::size_t i = live.size(); i < all.size(); ++i) kept.push_back(i);
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (std::binary_search(next.begin(), next.end(), live[i])) kept.push_back(i);
    }
    std::vector<std::size_t> shown;  // of `kept`, in the order of `next`
    for (const std::size_t x : next) {
      const auto is_x = [&](std::size_t i) { return all[i] == x; };
      shown.push_back(to_size(std::find_if(kept.begin(), kept.end(), is_x) - kept.begin()));
    }
    const Zone common = bounds_->projected(all);
    std::vector<State> before;
    if (rank > 0) before = levels_.back();
    if (rank == 0) before.emplace_back();
    std::vector<State> after;
    for (std::size_t b = 0; b < before.size(); ++b) {
      Zone base = common;
      raise_all(base, before[b].zone);
      if (!base.close()) continue;
      base = base.projected(kept);
      for (std::size_t i = 0; i < patterns_[rank].size() && !exhausted(); ++i) {
        steps_.spend(2);
        Zone zone = base;
        raise_all(zone, patterns_[rank][i].zone);
        if (zone.close()) keep({zone.projected(shown), b, i}, after);
      }
    }
    return after;
  }

  // The points of `part` are the first ones of `zone`.
  static void raise_all(Zone& zone, const Zone& part) {
    for (std::size_t a = 0; a < part.size(); ++a) {
      for (std::size_t b = 0; b < part.size(); ++b) zone.raise(a, b, part.at(a, b));
    }
  }

  void keep(State state, std::vector<State>& states) {
    steps_.spend(std::ssize(states) / 8);
    const auto covers = [&](const State& of) { return of.zone.includes(state.zone); };
    if (std::any_of(states.begin(), states.end(), covers)) return;
    std::erase_if(states, [&](const State& of) { return state.zone.includes(of.zone); });
    states.push_back(std::move(state));
  }

  const CyclicProblem& problem_;
  std::int64_t period_;
  SearchSteps& steps_;
  std::optional<Zone> bounds_;
  std::vector<std::vector<Pattern>> patterns_;  // by rank
  std::vector<std::vector<State>> levels_;      // by rank
};

using Laps = std::vector<std::vector<std::int64_t>>;

// The bounds of a schedule with these laps and period.
Zone with_laps(const CyclicProblem& problem, const Laps& laps, std::int64_t period) {
  Zone zone(problem.ops.size());
  for (const CyclicProblem::Delay& of : problem.delays) zone.raise(of.from, of.to, of.least + of.periods * period);
  for (std::size_t rank = 0; rank < laps.size(); ++rank) {
    const auto& ops = problem.of_rank[rank];
    std::size_t pair = 0;
    for (std::size_t a = 0; a < ops.size(); ++a) {
      for (std::size_t b = a + 1; b < ops.size(); ++b, ++pair) {
        zone.raise(ops[a], ops[b], laps[rank][pair] * period + problem.ops[ops[a]].duration);
        zone.raise(ops[b], ops[a], problem.ops[ops[b]].duration - (laps[rank][pair] + 1) * period);
      }
    }
  }
  if (!zone.close()) zone.raise(0, 0, 1);
  return zone;
}

// The least period in (low, high] with these laps, which `high` allows.
std::int64_t tightened(const CyclicProblem& problem, const Laps& laps, std::int64_t low, std::int64_t high) {
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (with_laps(problem, laps, middle).at(0, 0) > 0 ? low : high) = middle;
  }
  return high;
}

std::vector<std::int64_t> starts_of(const CyclicProblem& problem, const Laps& laps, std::int64_t period) {
  const Zone zone = with_laps(problem, laps, period);
  std::vector<std::int64_t> starts(problem.ops.size(), 0);
  for (std::size_t x = 0; x < starts.size(); ++x) {
    for (std::size_t from = 0; from < starts.size(); ++from) starts[x] = std::max(starts[x], zone.at(from, x));
  }
  return starts;
}

}  // namespace

CyclicSchedule least_period(const CyclicProblem& problem, SearchSteps steps) {
  CyclicSchedule out{.microbatches = problem.microbatches, .bound = problem.simple_bound()};
  std::int64_t next = out.bound;
  std::int64_t ahead = std::max<std::int64_t>(1, out.bound / 64);
  while (!out.proven()) {
    PeriodSearch search(problem, next, steps);
    const std::optional<Laps> laps = search.run();
    if (search.exhausted()) break;
    if (laps) {
      // Mostly the least period.
      out.period = tightened(problem, *laps, out.bound - 1, next);
      out.starts = starts_of(problem, *laps, out.period);
      next = out.period - 1;
      continue;
    }
    out.bound = next + 1;
    next = out.period > 0 ? out.bound + (out.period - out.bound) / 2 : next + ahead;
    ahead *= 2;
  }
  return out;
}

Orders unrolled(const CyclicProblem& problem, const CyclicSchedule& cyclic, const OpTable& table) {
  struct Start {
    std::int64_t time = 0;
    std::size_t op = 0;
    int microbatch = 0;
    auto operator<=>(const Start&) const = default;  // NOLINT(modernize-use-nullptr)
  };
  Orders orders(to_size(table.ranks));
  for (int rank = 0; rank < table.ranks; ++rank) {
    std::vector<Start> starts;
    for (const std::size_t x : problem.of_rank[rank]) {
      std::int64_t time = cyclic.starts[x];
      for (int mb = problem.ops[x].microbatch; mb < table.microbatches; mb += problem.microbatches) {
        starts.push_back({time, x, mb});
        time += cyclic.period;
      }
    }
    std::sort(starts.begin(), starts.end());
    for (const Start& start : starts) {
      const CyclicProblem::CyclicOp& of = problem.ops[start.op];
      orders[rank].push_back(table.id(of.kind, of.stage, start.microbatch, 0));
    }
  }
  return orders;
}

}  // namespace sluice::sim
