#include "sim/planner/periodic_beam.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "model/to_size.h"

namespace sluice::sim {
namespace {

constexpr std::int64_t kNotPlaced = std::numeric_limits<std::int64_t>::min();

std::int64_t modulo(std::int64_t time, std::int64_t period) {
  const std::int64_t rest = time % period;
  return rest < 0 ? rest + period : rest;
}

// With one period.
class PeriodicBeam {
 public:
  PeriodicBeam(const CyclicProblem& problem, std::int64_t period, std::size_t width, SearchSteps& steps)
      : problem_(problem), period_(period), width_(width), steps_(steps), before_(problem.ops.size()) {
    for (const CyclicProblem::Delay& delay : problem.delays) {
      if (delay.periods == 0 && problem.ops[delay.from].microbatch == problem.ops[delay.to].microbatch)
        before_[delay.to].push_back({delay.from, delay.least});
    }
    order_ops();
  }

  // Returns the starts of all ops.
  std::optional<std::vector<std::int64_t>> run() {
    std::vector<Partial> beam(1);
    beam[0].starts.assign(problem_.ops.size(), kNotPlaced);
    for (std::size_t i = 0; i < order_.size(); ++i) {
      std::vector<Choice> choices;
      for (std::size_t b = 0; b < beam.size(); ++b) choose(beam[b], b, order_[i], choices);
      if (steps_.exhausted()) return std::nullopt;
      std::sort(choices.begin(), choices.end());
      std::vector<Partial> next;
      for (const Choice& choice : choices) {
        if (next.size() == width_) break;
        Partial partial = beam[choice.partial];
        partial.starts[order_[i]] = choice.start;
        partial.delays = choice.delays;
        if (closes_[i] && !place_weights(partial, problem_.ops[order_[i]].rank)) continue;
        next.push_back(std::move(partial));
      }
      beam = std::move(next);
      if (beam.empty()) return std::nullopt;
    }
    return beam.front().starts;
  }

 private:
  struct Before {
    std::size_t op = 0;
    std::int64_t delay = 0;
  };
  struct Partial {
    std::vector<std::int64_t> starts;
    std::int64_t delays = 0;  // sum of the times for which ops that could start have waited
  };
  struct Choice {
    std::int64_t delays = 0;
    std::int64_t unused = 0;  // time in gaps of the rank that no op can use
    std::size_t partial = 0;
    std::int64_t start = 0;
    auto operator<=>(const Choice&) const = default;  // NOLINT(modernize-use-nullptr)
  };

  bool is_weight(std::size_t x) const { return problem_.ops[x].kind == OpKind::W; }

  // All ops but Ws: forwards up the stages, then gradients down; each for all microbatches of the period.
  void order_ops() {
    const std::size_t cells = problem_.of_stage.size();
    const std::size_t per_stage = to_size(problem_.microbatches);
    for (std::size_t cell = 0; cell < cells; ++cell) order_.push_back(problem_.of_stage[cell][0]);
    for (std::size_t stage = cells / per_stage; stage-- > 0;) {
      for (std::size_t mb = 0; mb < per_stage; ++mb) order_.push_back(problem_.of_stage[stage * per_stage + mb][1]);
    }
    closes_.assign(order_.size(), false);
    std::vector<bool> seen(to_size(problem_.num_ranks), false);
    for (std::size_t i = order_.size(); i-- > 0;) {
      const int rank = problem_.ops[order_[i]].rank;
      closes_[i] = !seen[rank];
      seen[rank] = true;
    }
  }

  bool free_at(const Partial& partial, std::size_t x, std::int64_t start) const {
    for (const std::size_t y : problem_.of_rank[problem_.ops[x].rank]) {
      if (y == x || partial.starts[y] == kNotPlaced) continue;
      const std::int64_t after = modulo(start - partial.starts[y], period_);
      if (after < problem_.ops[y].duration || after + problem_.ops[x].duration > period_) return false;
    }
    return true;
  }

  // Returns the time in the gaps between the ops of x's rank that its ops without a place cannot use.
  std::int64_t unused(const Partial& partial, std::size_t x, std::int64_t start) {
    gaps_.clear();
    left_.clear();
    for (const std::size_t y : problem_.of_rank[problem_.ops[x].rank]) {
      const std::int64_t at = y == x ? start : partial.starts[y];
      if (at == kNotPlaced) {
        left_.push_back(problem_.ops[y].duration);
      } else {
        gaps_.emplace_back(modulo(at - start, period_), problem_.ops[y].duration);
      }
    }
    std::sort(gaps_.begin(), gaps_.end());
    sums_.assign(1, 0);
    const bool all = left_.size() <= kMostForSums;
    for (std::size_t i = 0; i < left_.size() && all; ++i) {
      const std::size_t size = sums_.size();
      for (std::size_t s = 0; s < size; ++s) sums_.push_back(sums_[s] + left_[i]);
    }
    std::sort(sums_.begin(), sums_.end());
    const std::int64_t least = left_.empty() ? period_ : *std::min_element(left_.begin(), left_.end());
    std::int64_t lost = 0;
    for (std::size_t i = 0; i < gaps_.size(); ++i) {
      const std::int64_t end = gaps_[i].first + gaps_[i].second;
      const std::int64_t gap = (i + 1 < gaps_.size() ? gaps_[i + 1].first : period_) - end;
      if (all) {
        lost += gap - *(std::upper_bound(sums_.begin(), sums_.end(), gap) - 1);
      } else if (gap < least) {
        lost += gap;
      }
    }
    return lost;
  }

  void choose(const Partial& partial, std::size_t index, std::size_t x, std::vector<Choice>& choices) {
    std::int64_t ready = 0;
    for (const Before& before : before_[x]) {
      if (partial.starts[before.op] != kNotPlaced) ready = std::max(ready, partial.starts[before.op] + before.delay);
    }
    times_.assign(1, ready);
    const auto& own = problem_.ops[x];
    const auto add = [&](std::int64_t time) { times_.push_back(ready + modulo(time - ready, period_)); };
    std::int64_t work = 0;
    for (const std::size_t y : problem_.of_rank[own.rank]) {
      work += problem_.ops[y].duration;
      if (y == x || partial.starts[y] == kNotPlaced) continue;
      const std::int64_t end = partial.starts[y] + problem_.ops[y].duration;
      add(end);
      add(partial.starts[y] - own.duration);
      for (const std::size_t z : problem_.of_rank[own.rank]) {
        if (z == x || partial.starts[z] != kNotPlaced) continue;
        add(end + problem_.ops[z].duration);
        add(partial.starts[y] - own.duration - problem_.ops[z].duration);
      }
    }
    std::sort(times_.begin(), times_.end());
    times_.erase(std::unique(times_.begin(), times_.end()), times_.end());
    steps_.spend(std::ssize(times_));
    for (const std::int64_t start : times_) {
      if (!free_at(partial, x, start)) continue;
      const std::int64_t lost = unused(partial, x, start);
      if (lost > period_ - work) continue;
      // Microbatches of a period may start at any time.
      const std::int64_t delay = before_[x].empty() ? 0 : start - ready;
      choices.push_back({partial.delays + delay, lost, index, start});
    }
  }

  // Places the weight gradients of one rank, each as early as possible, in some orders. Returns false if they do not
  // fit.
  bool place_weights(Partial& partial, int rank) {
    std::vector<std::size_t> weights;
    for (const std::size_t x : problem_.of_rank[rank]) {
      if (is_weight(x)) weights.push_back(x);
    }
    const auto ready = [&](std::size_t x) {
      const Before& gradient = before_[x].front();
      return partial.starts[gradient.op] + gradient.delay;
    };
    std::sort(weights.begin(), weights.end(),
              [&](std::size_t a, std::size_t b) { return std::tuple(ready(a), a) < std::tuple(ready(b), b); });
    constexpr int kMostOrders = 6;
    for (int i = 0; i < kMostOrders; ++i) {
      bool placed = true;
      for (const std::size_t x : weights) placed = placed && place_weight(partial, x, ready(x));
      if (placed && keeps_limit(partial, rank)) return true;
      for (const std::size_t x : weights) partial.starts[x] = kNotPlaced;
      std::rotate(weights.begin(), weights.begin() + (weights.empty() ? 0 : 1), weights.end());
      if (i + 1 >= std::ssize(weights)) break;
    }
    return false;
  }

  bool place_weight(Partial& partial, std::size_t x, std::int64_t ready) {
    std::int64_t best = kNotPlaced;
    const auto consider = [&](std::int64_t start) {
      if ((best == kNotPlaced || start < best) && free_at(partial, x, start)) best = start;
    };
    consider(ready);
    for (const std::size_t y : problem_.of_rank[problem_.ops[x].rank]) {
      if (y == x || partial.starts[y] == kNotPlaced) continue;
      consider(ready + modulo(partial.starts[y] + problem_.ops[y].duration - ready, period_));
    }
    partial.starts[x] = best;
    return best != kNotPlaced;
  }

  bool keeps_limit(const Partial& partial, int rank) const {
    for (const std::size_t x : problem_.of_rank[rank]) {
      std::int64_t held = problem_.ops[x].takes;
      for (const std::size_t y : problem_.of_rank[rank]) {
        const std::int64_t since = partial.starts[x] - partial.starts[y] - problem_.ops[y].duration;
        const std::int64_t ended = (since - modulo(since, period_)) / period_ + 1;
        held += problem_.ops[y].keeps * ended;
      }
      if (held > problem_.limit[rank]) return false;
    }
    return true;
  }

  static constexpr std::size_t kMostForSums = 8;

  const CyclicProblem& problem_;
  std::int64_t period_;
  std::size_t width_;
  SearchSteps& steps_;
  std::vector<std::vector<Before>> before_;  // by op: what it waits for
  std::vector<std::size_t> order_;
  std::vector<bool> closes_;  // by place in `order_`: the last one of its rank
  std::vector<std::int64_t> times_, left_, sums_;
  std::vector<std::pair<std::int64_t, std::int64_t>> gaps_;
};

}  // namespace

CyclicSchedule short_period(const CyclicProblem& problem, std::size_t width, SearchSteps steps) {
  CyclicSchedule out{.microbatches = problem.microbatches, .bound = problem.simple_bound()};
  std::int64_t low = out.bound - 1;  // failed
  std::int64_t ahead = std::max<std::int64_t>(1, out.bound / 64);
  const std::int64_t finest = std::max<std::int64_t>(1, out.bound / 256);
  while (out.period == 0 || out.period - low > finest) {
    const std::int64_t period =
        out.period == 0 ? (low < out.bound ? out.bound : low + ahead) : low + (out.period - low) / 2;
    if (period > 4 * out.bound) break;
    std::optional<std::vector<std::int64_t>> starts = PeriodicBeam(problem, period, width, steps).run();
    if (steps.exhausted()) break;
    if (starts) {
      out.period = period;
      out.starts = std::move(*starts);
    } else {
      if (low >= out.bound) ahead *= 2;
      low = period;
    }
  }
  return out;
}

}  // namespace sluice::sim
