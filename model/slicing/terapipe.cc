#include "model/slicing/terapipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <string_view>
#include <utility>

#include "model/errors.h"
#include "model/slicing/slice_window.h"

namespace sluice::model {
namespace {

// Everything counts in granules and, for time, in whole nanoseconds.

void check_times(const SliceTimes& times, std::string_view what) {
  if (times.tokens < 1) {
    throw InputError(fmt::format("{}: expected a sequence of at least one token, got {}", what, times.tokens));
  }
  if (times.granularity < 1 || times.granularity > times.tokens) {
    throw InputError(fmt::format("{}: expected a granularity between 1 and the sequence's {} tokens, got {}", what,
                                 times.tokens, times.granularity));
  }
}

// Also compiles, where possible, for processors with wider vectors than the baseline; the version is selected at run
// time. Not with the thread sanitizer: the selection would run before it is initialized.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define SLUICE_WIDE_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define SLUICE_WIDE_VECTORS
#endif

// Upper bounds of the f, x and f + x of every slice of a plan.
template <typename T>
struct Limits {
  T forward = 0;
  T backward = 0;
  T both = 0;
  bool allow(T f, T c) const { return (f <= forward) & (c - f <= backward) & (c <= both); }
};

// The minimum of `sum(n)`, in lanes that a compiler vectorizes.
template <typename T, typename Sum>
inline __attribute__((always_inline)) T least_in_lanes(std::int64_t size, const Sum& sum) {
  constexpr std::int64_t kLanes = 64 / sizeof(T);
  if (size < kLanes) {
    T least = kFarTime<T>;
    for (std::int64_t n = 0; n < size; ++n) least = std::min<T>(least, sum(n));
    return least;
  }
  std::array<T, kLanes> lanes;
  lanes.fill(kFarTime<T>);
  const auto add = [&](std::int64_t n) __attribute__((always_inline)) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const T one = sum(n + lane);
      T& least = lanes[lane];
      least = one < least ? one : least;
    }
  };
  for (std::int64_t n = 0; n + kLanes <= size; n += kLanes) add(n);
  add(size - kLanes);  // overlaps with the previous ones
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] = std::min(lanes[lane], lanes[lane + half]);
  }
  return lanes[0];
}

// The minimum of cost[n] + rest[n]; below, only of those within the limits.
SLUICE_WIDE_VECTORS std::int32_t least_sum(const std::int32_t* cost, const std::int32_t* rest, std::int64_t size) {
  return least_in_lanes<std::int32_t>(size, [=](std::int64_t n) { return cost[n] + rest[n]; });
}
SLUICE_WIDE_VECTORS double least_sum(const double* cost, const double* rest, std::int64_t size) {
  return least_in_lanes<double>(size, [=](std::int64_t n) { return cost[n] + rest[n]; });
}
SLUICE_WIDE_VECTORS std::int32_t least_allowed_sum(const std::int32_t* cost, const std::int32_t* forward,
                                                   const std::int32_t* rest, std::int64_t size,
                                                   Limits<std::int32_t> limits) {
  return least_in_lanes<std::int32_t>(size, [=](std::int64_t n) {
    const std::int32_t sum = cost[n] + rest[n];
    return limits.allow(forward[n], cost[n]) ? sum : kFarTime<std::int32_t>;
  });
}
SLUICE_WIDE_VECTORS double least_allowed_sum(const double* cost, const double* forward, const double* rest,
                                             std::int64_t size, Limits<double> limits) {
  return least_in_lanes<double>(size, [=](std::int64_t n) {
    const double sum = cost[n] + rest[n];
    return limits.allow(forward[n], cost[n]) ? sum : kFarTime<double>;
  });
}

// Bounds on the longest f and the longest x of a plan, and on the sum of the two.
struct Bounds {
  Nanoseconds forward = 0;
  Nanoseconds backward = 0;
  Nanoseconds both = 0;
};

// A plan with the least sum for some bounds.
struct Found {
  Nanoseconds sum = 0;
  Bounds longest;                     // of the plan's own slices
  std::vector<std::int64_t> lengths;  // in granules
};

// S*(L; t_max) by dynamic programming from the sequence's end: rest(i) = min over n of c(i, n) + rest(i + n).
template <typename T>
class Sweeps {
 public:
  Sweeps(const SlicingProblem& problem, Nanoseconds longest)
      : window_(problem, longest), min_slices_(problem.min_slices), max_slices_(problem.max_slices) {
    const std::int64_t granules = window_.granules();
    // Slices are counted only if their number matters: then there is a layer for each number.
    if (min_slices_ <= 1 && (max_slices_ == 0 || max_slices_ >= granules)) max_slices_ = 0;
    if (max_slices_ == 0 && min_slices_ > 1) max_slices_ = granules;
    rest_.assign(max_slices_ + 1, std::vector<T>(static_cast<std::size_t>(granules + 1), kFarTime<T>));
    rest_[0].back() = 0;
    reach_.resize(granules);
  }

  // Plans with a sum of `limit` or more, which is at most `far`, are not wanted. Empty if there is no other.
  std::optional<Found> operator()(const Bounds& bounds, Nanoseconds limit) {
    ++count_;
    const auto limit_of = [](Nanoseconds most) {
      return static_cast<T>(std::min<Nanoseconds>(most, static_cast<Nanoseconds>(kFarTime<T>) - 1));
    };
    limits_ = {limit_of(bounds.forward), limit_of(bounds.backward), limit_of(bounds.both)};
    find_reach();
    if (max_slices_ == 0) {
      sweep(rest_[0], rest_[0]);
      return trace(0, limit);
    }
    std::int64_t best = 0;
    for (std::int64_t layer = 1; layer <= max_slices_; ++layer) {
      sweep(rest_[layer - 1], rest_[layer]);
      if (layer >= min_slices_ && (best == 0 || rest_[layer][0] < rest_[best][0])) best = layer;
    }
    return trace(best, limit);
  }

  std::int64_t count() const { return count_; }

  // No slice with f + x above this matters any more.
  void forget_above(Nanoseconds longest) { window_.shorten(longest); }

 private:
  using Row = typename SliceWindow<T>::Row;

  bool allowed(const Row& row, std::int64_t n) const { return limits_.allow(row.forward[n], row.both[n]); }

  // How many of each row's slices are within the bounds. Where times grow these are the first; a pointer that moves
  // from row to row finds the end, and moves little where times grow with the context as well.
  void find_reach() {
    std::int64_t reach = 0;
    for (std::int64_t begin = window_.granules() - 1; begin >= 0; --begin) {
      const Row& row = window_.row(begin);
      if (window_.grows()) {
        reach = std::min(reach + 1, row.size);
        while (reach < row.size && allowed(row, reach)) ++reach;
      } else {
        reach = row.size;
      }
      while (reach > 0 && !allowed(row, reach - 1)) --reach;
      reach_[begin] = reach;
    }
  }

  // `after` has the minimum sums after every position, with one slice fewer; or it is `out` itself.
  void sweep(const std::vector<T>& after, std::vector<T>& out) {
    for (std::int64_t begin = window_.granules() - 1; begin >= 0; --begin) {
      const Row& row = window_.row(begin);
      const T* rest = after.data() + begin + 1;
      const std::int64_t reach = reach_[begin];
      out[begin] = window_.grows() ? least_sum(row.both, rest, reach)
                                   : least_allowed_sum(row.both, row.forward, rest, reach, limits_);
    }
  }

  std::optional<Found> trace(std::int64_t layer, Nanoseconds limit) const {
    Found found;
    found.sum = static_cast<Nanoseconds>(rest_[layer][0]);
    if (found.sum >= limit) return std::nullopt;
    for (std::int64_t begin = 0; begin < window_.granules();) {
      const Row& row = window_.row(begin);
      const T sum = rest_[layer][begin];
      if (layer > 0) --layer;
      const std::vector<T>& rest = rest_[layer];
      std::int64_t n = 0;
      while (!(allowed(row, n) && row.both[n] + rest[begin + n + 1] == sum)) ++n;
      found.longest.forward = std::max(found.longest.forward, static_cast<Nanoseconds>(row.forward[n]));
      found.longest.backward = std::max(found.longest.backward, static_cast<Nanoseconds>(row.both[n] - row.forward[n]));
      found.lengths.push_back(n + 1);
      begin += n + 1;
    }
    found.longest.both = found.longest.forward + found.longest.backward;
    return found;
  }

  SliceWindow<T> window_;
  std::int64_t min_slices_, max_slices_;
  Limits<T> limits_;
  std::vector<std::int64_t> reach_;
  std::vector<std::vector<T>> rest_;  // by layer, by begin; the last is the end of the sequence
  std::int64_t count_ = 0;
};

// Plans whose longest f is in (low.forward, high.forward], whose longest x and the sum of the two likewise. None of
// them has a sum below `sum`.
struct Box {
  Nanoseconds sum = 0;
  Bounds low, high;
  bool probed = false;  // swept at its own upper bounds, or just below a plan found there
  bool apart = false;   // the longest f and x were those of different slices

  // Makes each bound as tight as the others allow.
  void tighten() {
    high.both = std::min(high.both, high.forward + high.backward);
    high.forward = std::min(high.forward, high.both - (low.backward + 1));
    high.backward = std::min(high.backward, high.both - (low.forward + 1));
    low.both = std::max(low.both, low.forward + low.backward + 1);
  }
  bool empty() const { return high.forward <= low.forward || high.backward <= low.backward || high.both <= low.both; }
};

// Best first: of all boxes that may hold a better plan the one with the least bound, S*(L; high) + (K - 1) times what
// max f + max x is at least. A sweep with every f + x at most the middle of that leaves the upper half with the old
// sum. The plan that it finds has the least sum: if its own max f + max x is within the lower half, better plans have a
// smaller one. If not - its longest f and x are those of different slices, and the sweep, which looks at one slice at a
// time, could not tell - then every plan of the lower half has a smaller longest f, or else a smaller longest x.
// Forward only, x is 0 and the second never happens.
template <typename T>
class Search {
 public:
  Search(const SlicingProblem& problem, Nanoseconds known, Nanoseconds longest)
      : sweeps_(problem, longest), weight_(problem.num_cells - 1), best_(known + 1) {
    // The known plan is not kept: an equally good one is found here.
    const Box all{.sum = 0, .low = {-1, -1, -1}, .high = {longest, problem.backward ? longest : 0, longest}};
    if (const auto found = sweeps_(all.high, best_)) {
      least_sum_ = found->sum;
      take(*found, all);
    }
    while (!boxes_.empty() && bound(boxes_.top().second) < best_) {
      const Box box = boxes_.top().second;
      boxes_.pop();
      split(box);
    }
  }

  Nanoseconds best() const { return best_; }
  const std::vector<std::int64_t>& lengths() const { return lengths_; }
  std::int64_t sweeps() const { return sweeps_.count(); }

 private:
  Nanoseconds bound(const Box& box) const { return box.sum + weight_ * (box.low.both + 1); }

  void push(Box box) {
    // Above this no plan is better.
    if (weight_ > 0) box.high.both = std::min(box.high.both, (best_ - 1 - box.sum) / weight_);
    box.tighten();
    if (box.empty() || bound(box) >= best_) return;
    boxes_.push({{bound(box), pushed_++}, box});
  }

  // The plan with the minimum sum under `box.high`: the remainder of the box.
  void take(const Found& found, Box box) {
    const Nanoseconds latency = found.sum + weight_ * found.longest.both;
    if (latency < best_) {
      best_ = latency;
      lengths_ = found.lengths;
      if (weight_ > 0) sweeps_.forget_above(std::max<Nanoseconds>(0, (best_ - 1 - least_sum_) / weight_));
    }
    box.sum = found.sum;
    box.apart |= found.longest.both > box.high.both;
    if (found.longest.both <= box.high.both) {
      box.high.both = found.longest.both - 1;
      return push(box);
    }
    Box shorter = box;
    shorter.high.forward = std::min(box.high.forward, found.longest.forward - 1);
    push(shorter);
    box.low.forward = std::max(box.low.forward, found.longest.forward - 1);
    box.high.backward = std::min(box.high.backward, found.longest.backward - 1);
    push(box);
  }

  void split(Box box) {
    // Where the sum steps up right below a plan, this ends a box that halving would take many sweeps to close.
    if (!box.apart && !box.probed) {
      box.probed = true;
      if (const auto found = sweeps_(box.high, best_)) take(*found, box);
      return;
    }
    Nanoseconds Bounds::*side = &Bounds::both;
    if (box.apart) {
      const bool forward = box.high.forward - box.low.forward >= box.high.backward - box.low.backward;
      side = forward ? &Bounds::forward : &Bounds::backward;
    }
    const Nanoseconds middle = box.low.*side + (box.high.*side - box.low.*side + 1) / 2;
    Box lower = box;
    lower.high.*side = middle;
    lower.tighten();
    lower.probed = false;
    if (const auto found = sweeps_(lower.high, best_)) take(*found, lower);
    box.low.*side = middle;
    push(box);
  }

  // By bound, then by age, so that the order is always the same.
  using Entry = std::pair<std::pair<Nanoseconds, std::int64_t>, Box>;
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const { return a.first > b.first; }
  };

  Sweeps<T> sweeps_;
  Nanoseconds weight_;
  Nanoseconds best_;
  Nanoseconds least_sum_ = 0;          // of all plans
  std::vector<std::int64_t> lengths_;  // in granules
  std::priority_queue<Entry, std::vector<Entry>, Later> boxes_;
  std::int64_t pushed_ = 0;
};

// The best of even cuts in 1, 2, 3, 4, 6, 8, 12, ... slices.
Nanoseconds known_latency(const SlicingProblem& problem) {
  const std::int64_t granules = problem.forward.granules();
  const std::int64_t most = problem.max_slices == 0 ? granules : std::min(problem.max_slices, granules);
  std::set<std::int64_t> counts = {problem.min_slices, most};
  for (std::int64_t count = 1; count <= most; count *= 2) {
    for (const std::int64_t n : {count, count + count / 2}) {
      if (n >= problem.min_slices && n <= most) counts.insert(n);
    }
  }
  Duration best = Duration::max();
  for (const std::int64_t count : counts) {
    best = std::min(best,
                    pipeline_latency(problem, even_slices(problem.forward.tokens, problem.forward.granularity, count)));
  }
  return best.count();
}

template <typename T>
SlicePlan searched(const SlicingProblem& problem, Nanoseconds known) {
  const Search<T> search(problem, known, known / problem.num_cells);
  SlicePlan plan{.latency = Duration{search.best()}, .lower_bound = Duration{search.best()}, .sweeps = search.sweeps()};
  for (std::int64_t begin = 0; const std::int64_t length : search.lengths()) {
    plan.lengths.push_back(problem.forward.position(begin + length) - problem.forward.position(begin));
    begin += length;
  }
  return plan;
}

}  // namespace

void check_problem(const SlicingProblem& problem) {
  check_times(problem.forward, "forward times");
  if (problem.backward) {
    check_times(*problem.backward, "backward times");
    if (problem.backward->tokens != problem.forward.tokens ||
        problem.backward->granularity != problem.forward.granularity) {
      throw InputError(fmt::format("backward times: expected the forward's {} tokens at granularity {}, got {} at {}",
                                   problem.forward.tokens, problem.forward.granularity, problem.backward->tokens,
                                   problem.backward->granularity));
    }
  }
  if (problem.num_cells < 1) throw InputError(fmt::format("expected at least one cell, got {}", problem.num_cells));
  const std::int64_t granules = problem.forward.granules();
  if (problem.min_slices < 1 || problem.min_slices > granules) {
    throw InputError(fmt::format("expected between 1 and {} slices of {} tokens at granularity {}, got {}", granules,
                                 problem.forward.tokens, problem.forward.granularity, problem.min_slices));
  }
  if (problem.max_slices != 0 && problem.max_slices < problem.min_slices) {
    throw InputError(fmt::format("expected at least {} slices, got {}", problem.min_slices, problem.max_slices));
  }
}

Duration pipeline_latency(std::span<const Duration> forward, std::span<const Duration> backward, int num_cells) {
  Duration out{};
  for (const std::span<const Duration> sweep : {forward, backward}) {
    if (sweep.empty()) continue;
    out += std::accumulate(sweep.begin(), sweep.end(), Duration{});
    out += (num_cells - 1) * *std::max_element(sweep.begin(), sweep.end());
  }
  return out;
}

Duration pipeline_latency(const SlicingProblem& problem, std::span<const std::int64_t> lengths) {
  const std::int64_t granularity = problem.forward.granularity;
  std::vector<Duration> forward, backward;
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    const std::int64_t granules = (length + granularity - 1) / granularity;
    forward.push_back(problem.forward.time(begin, granules));
    if (problem.backward) backward.push_back(problem.backward->time(begin, granules));
    begin += granules;
  }
  return pipeline_latency(forward, backward, problem.num_cells);
}

std::vector<std::int64_t> even_slices(std::int64_t tokens, std::int64_t granularity, std::int64_t slices) {
  const std::int64_t granules = (tokens + granularity - 1) / granularity;
  if (slices < 1 || slices > granules) {
    throw InputError(fmt::format("expected between 1 and {} slices of {} tokens at granularity {}, got {}", granules,
                                 tokens, granularity, slices));
  }
  std::vector<std::int64_t> out(static_cast<std::size_t>(slices), granules / slices * granularity);
  for (std::int64_t i = 0; i < granules % slices; ++i) out[i] += granularity;
  out.back() -= granules * granularity - tokens;
  return out;
}

SlicePlan best_slices(const SlicingProblem& problem) {
  check_problem(problem);
  const Nanoseconds known = known_latency(problem);
  if (known >= static_cast<Nanoseconds>(kFarTime<double>)) {
    throw InputError(
        fmt::format("expected slices that take less than 100 days in all, got {} s", to_seconds(Duration{known})));
  }
  return known < kFarTime<std::int32_t> ? searched<std::int32_t>(problem, known) : searched<double>(problem, known);
}

}  // namespace sluice::model
