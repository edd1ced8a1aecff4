#include "sim/planner/cyclic_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "model/to_size.h"
#include "sim/planner/auto_bounds.h"
#include "sim/planner/auto_schedule.h"
#include "sim/planner/order_times.h"
#include "sim/planner/periodic_beam.h"
#include "sim/planner/rank_bound.h"

namespace sluice::test {
namespace {

using sim::CyclicSchedule;
using sim::IdleSearch;
using sim::PlacedProblem;
using sim::RankProblem;

enum class Placement : std::uint8_t { linear, looped, v };

std::vector<int> ranks_of_stages(Placement placement, int p) {
  std::vector<int> out;
  for (int r = 0; r < p; ++r) out.push_back(r);
  for (int r = 0; r < p && placement != Placement::linear; ++r)
    out.push_back(placement == Placement::v ? p - 1 - r : r);
  return out;
}

// Each stage takes 5, 6 and 4, and holds one unit until its W.
PlacedProblem chunked(Placement placement, int p, int m, int hop, std::int64_t limit) {
  PlacedProblem out;
  out.rank_of = ranks_of_stages(placement, p);
  out.num_ranks = p;
  out.num_microbatches = m;
  out.shape.slice_lengths = {1};
  const int stages = out.num_stages();
  out.times.assign(stages, {.forward = Duration(5),
                            .input_gradient = Duration(6),
                            .weight_gradient = Duration(4),
                            .backward = Duration(10)});
  out.bytes.assign(stages, {.activations_to_weight_gradient = 1});
  out.limit.assign(p, limit);
  out.after.assign(p, Duration{});
  const auto latency = [&](int stage, int other) {
    return Duration(other >= 0 && other < stages && out.rank_of[stage] != out.rank_of[other] ? hop : 0);
  };
  for (int stage = 0; stage < stages; ++stage) {
    out.forward_hop.push_back(latency(stage, stage + 1));
    out.backward_hop.push_back(latency(stage, stage - 1));
  }
  return out;
}

// Periods for which a constraint solver finds a schedule. With one less, it found none.
TEST(CyclicSchedule, FindsThePeriodsThatAConstraintSolverFinds) {
  const std::vector<std::tuple<int, int, int, int, std::int64_t>> cases = {
      {8, 2, 12, 1, 30}, {8, 2, 10, 1, 32}, {8, 2, 8, 1, 41}, {8, 1, 8, 1, 37}, {4, 1, 4, 1, 38}, {4, 1, 4, 2, 73}};
  for (const auto& [p, hop, limit, microbatches, period] : cases) {
    const auto problem = sim::cyclic_problem(chunked(Placement::v, p, 32, hop, limit), microbatches);
    const CyclicSchedule found = sim::least_period(*problem, SearchSteps(4'000'000));
    EXPECT_EQ(found.period, period);
    EXPECT_EQ(found.bound, period);
  }
}

// Whether a schedule with this period exists: tries all integer starts. Shares no code with the search.
class AllStarts {
 public:
  AllStarts(const PlacedProblem& problem, std::int64_t period) : problem_(problem), period_(period) {
    const int stages = problem.num_stages();
    for (int s = 0; s < stages; ++s) {
      add(s, problem.times[s].forward, s - 1, s > 0 ? problem.forward_hop[s - 1] : Duration{});
    }
    for (int s = stages - 1; s >= 0; --s) {
      const bool last = s + 1 == stages;
      add(s, problem.times[s].input_gradient, last ? stages - 1 : gradient(s + 1),
          last ? Duration{} : problem.backward_hop[s + 1]);
      add(s, problem.times[s].weight_gradient, gradient(s), {});
    }
    start_.resize(ops_.size());
  }

  bool exist() { return place(0); }

 private:
  struct Each {
    int stage, before;
    std::int64_t duration, hop;
  };
  int gradient(int stage) const { return problem_.num_stages() + 2 * (problem_.num_stages() - 1 - stage); }
  int weight(int stage) const { return gradient(stage) + 1; }
  void add(int stage, Duration duration, int before, Duration hop) {
    ops_.push_back({stage, before, duration.count(), hop.count()});
  }
  int rank(std::size_t x) const { return problem_.rank_of[ops_[x].stage]; }

  bool place(std::size_t x) {
    if (x == ops_.size()) return fits();
    const Each& of = ops_[x];
    std::int64_t first = of.before < 0 ? 0 : start_[of.before] + ops_[of.before].duration + of.hop;
    // A result is held for no more periods than the limit has room for results. A W without one runs in each period.
    const bool is_weight = to_size(weight(of.stage)) == x;
    const int holder = is_weight ? of.stage : 0;
    std::int64_t last = start_[holder] + problem_.limit[problem_.rank_of[holder]] * period_;
    if (is_weight) last += period_;
    if (x == 0) last = 0;
    for (; first <= last; ++first) {
      start_[x] = first;
      if (is_free(x) && place(x + 1)) return true;
    }
    return false;
  }

  bool is_free(std::size_t x) const {
    for (std::size_t y = 0; y < x; ++y) {
      if (rank(y) != rank(x)) continue;
      const std::int64_t apart = ((start_[x] - start_[y]) % period_ + period_) % period_;
      if (apart < ops_[y].duration || period_ - apart < ops_[x].duration) return false;
    }
    return true;
  }

  // Microbatches whose result is held at time `now`, from `begin` until `end` of one of them.
  std::int64_t held(std::int64_t now, std::int64_t begin, std::int64_t end) const {
    std::int64_t count = 0;
    for (std::int64_t k = -12; k <= 12; ++k) count += begin + k * period_ <= now && now < end + k * period_ ? 1 : 0;
    return count;
  }

  bool fits() const {
    const int stages = problem_.num_stages();
    const auto end = [&](int x) { return start_[x] + ops_[x].duration; };
    for (int at = 0; at < stages; ++at) {
      std::int64_t sum = 0;
      for (int s = 0; s < stages; ++s) {
        if (problem_.rank_of[s] != problem_.rank_of[at]) continue;
        sum += problem_.bytes[s].activations_to_input_gradient * held(start_[at], start_[s], end(gradient(s)));
        sum += problem_.bytes[s].activations_to_weight_gradient * held(start_[at], start_[s], end(weight(s)));
      }
      if (sum > problem_.limit[problem_.rank_of[at]]) return false;
    }
    return true;
  }

  const PlacedProblem& problem_;
  std::int64_t period_;
  std::vector<Each> ops_;
  std::vector<std::int64_t> start_;
};

struct Random {
  std::mt19937 engine;
  int operator()(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); }
};

PlacedProblem tiny(Random& random) {
  PlacedProblem out = chunked(Placement::linear, 3, 8, random(0, 1), 0);
  out.rank_of = {0, 1, 0};
  out.num_ranks = 2;
  out.limit = {random(2, 3), random(1, 2)};
  out.after.resize(2);
  const bool at_input = random(0, 2) == 0;  // released by I, not W
  for (std::size_t s = 0; s < out.times.size(); ++s) {
    SliceOpTimes& of = out.times[s];
    of = {Duration(random(1, 3)), Duration(random(1, 3)), Duration(random(1, 2)), Duration{}};
    of.backward = of.input_gradient + of.weight_gradient;
    if (at_input) out.bytes[s] = {.activations_to_input_gradient = 1};
  }
  return out;
}

TEST(CyclicSchedule, EqualsAnExhaustiveSearch) {
  Random random{std::mt19937(34)};
  int above_work = 0;
  for (int i = 0; i < 100; ++i) {
    SCOPED_TRACE(i);
    const PlacedProblem problem = tiny(random);
    const auto cyclic = sim::cyclic_problem(problem, 1);
    const CyclicSchedule found = sim::least_period(*cyclic, SearchSteps(1'000'000));
    ASSERT_TRUE(found.proven());
    EXPECT_TRUE(AllStarts(problem, found.period).exist());
    EXPECT_FALSE(AllStarts(problem, found.period - 1).exist());
    above_work += found.period > cyclic->simple_bound() ? 1 : 0;
  }
  EXPECT_GT(above_work, 5);
}

// Its schedule exists, by an exhaustive search, and the least period is mostly that.
TEST(ShortPeriod, ExistsByAnExhaustiveSearch) {
  Random random{std::mt19937(35)};
  int least = 0;
  for (int i = 0; i < 100; ++i) {
    SCOPED_TRACE(i);
    const PlacedProblem problem = tiny(random);
    const auto cyclic = sim::cyclic_problem(problem, 1);
    const CyclicSchedule found = sim::short_period(*cyclic, 100, SearchSteps(1'000'000));
    ASSERT_GT(found.period, 0);
    EXPECT_TRUE(AllStarts(problem, found.period).exist());
    least += found.period == sim::least_period(*cyclic, SearchSteps(1'000'000)).period ? 1 : 0;
  }
  EXPECT_GE(least, 80);
}

// Unrolled, it keeps the limits, and each microbatch adds at most a period to the end of the first one.
TEST(ShortPeriod, HoldsForAnyNumberOfMicrobatches) {
  Random random{std::mt19937(36)};
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    const int p = random(2, 8);
    const auto placement = static_cast<Placement>(random(0, 2));
    const int chunks = placement == Placement::linear ? 1 : 2;
    PlacedProblem problem = chunked(placement, p, 30, random(0, 3), random(chunks * (p + 1) / 2, chunks * p));
    const SliceOpTimes all{Duration(random(2, 9)), Duration(random(2, 9)), Duration(random(1, 8)), Duration{}};
    for (SliceOpTimes& of : problem.times) {
      of = all;
      of.backward = of.input_gradient + of.weight_gradient;
    }
    const auto cyclic = sim::cyclic_problem(problem, 1);
    const CyclicSchedule found = sim::short_period(*cyclic, 100, SearchSteps(2'000'000));
    ASSERT_GT(found.period, 0);
    std::int64_t end = 0;  // of the first microbatch
    for (std::size_t x = 0; x < cyclic->ops.size(); ++x) end = std::max(end, found.starts[x] + cyclic->ops[x].duration);
    for (const int m : {1, 2, 30}) {
      problem.num_microbatches = m;
      const sim::OpTable table(problem);
      const sim::Orders orders = sim::unrolled(*cyclic, found, table);
      EXPECT_TRUE(sim::keeps_limits(problem, table, orders));
      EXPECT_LE(sim::OrderTimes(problem, table).run(orders), end + (m - 1) * found.period);
    }
  }
}

// All orders, one after the other.
class AllOrders {
 public:
  AllOrders(const RankProblem& problem, std::int64_t until)
      : problem_(problem), until_(until), ends_(problem.groups.size()), least_idle_(until) {
    run(std::vector<std::int64_t>(problem.limit.size(), 0), 0, std::vector<std::int64_t>(problem.limit.size(), 0));
  }
  std::int64_t least_idle() const { return least_idle_; }

 private:
  void run(const std::vector<std::int64_t>& clock, std::int64_t idle, const std::vector<std::int64_t>& held) {
    // What it idles before `until_` if nothing follows.
    least_idle_ = std::min(least_idle_, idle + std::max<std::int64_t>(0, until_ - clock[0]));
    for (std::size_t g = 0; g < problem_.groups.size(); ++g) {
      const RankProblem::Group& group = problem_.groups[g];
      const std::size_t j = ends_[g].size();
      if (std::ssize(ends_[g]) == problem_.microbatches ||
          held[group.machine] + group.takes > problem_.limit[group.machine]) {
        continue;
      }
      std::int64_t start = std::max(clock[group.machine], group.heads[j]);
      bool ready = true;
      for (const int before : group.after) ready = ready && ends_[before].size() > j;
      if (group.behind >= 0) {
        ready = ready && ends_[group.behind].size() > j;
        if (ready) start = std::max(start, ends_[group.behind][j] + group.delay);
      }
      if (!ready) continue;
      const std::int64_t gap = std::max<std::int64_t>(0, std::min(until_, start) - clock[0]);
      std::vector<std::int64_t> next_clock = clock;
      std::vector<std::int64_t> next_held = held;
      next_clock[group.machine] = start + group.duration;
      next_held[group.machine] += group.keeps;
      ends_[g].push_back(start + group.duration);
      run(next_clock, idle + (group.machine == 0 ? gap : 0), next_held);
      ends_[g].pop_back();
    }
  }

  const RankProblem& problem_;
  std::int64_t until_;
  std::vector<std::vector<std::int64_t>> ends_;
  std::int64_t least_idle_;
};

// The stages of one rank (one or two), or of two ranks (one each): forwards, then gradients, with delays between them.
RankProblem random_rank(std::mt19937& engine) {
  const auto random = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); };
  const int stages = random(1, 2);
  const int machines = random(1, stages);
  const int reverse = random(0, 1);  // which machine has the first stage
  RankProblem out{.microbatches = stages == 1 ? random(1, 4) : machines == 1 ? random(1, 2) : 2, .groups = {}};
  for (int i = 0; i < machines; ++i) out.limit.push_back(random(stages / machines, 5));
  int stage = 0;
  std::int64_t delay = 0;
  int behind = -1;
  const int kept_by_gradient = random(0, 2);  // more than released: 1 or 2 gradients until W
  const auto add = [&](std::int64_t takes, std::int64_t keeps, int after, bool chained) {
    RankProblem::Group group{
        .machine = (stage + reverse) % machines, .duration = random(0, 6), .takes = takes, .keeps = keeps};
    if (after >= 0) group.after.push_back(after);
    if (chained) {
      group.behind = behind;
      group.delay = delay;
      behind = static_cast<int>(out.groups.size());
      delay = random(0, 2) == 0 ? 0 : random(1, 20);
    }
    const int head = random(0, 12);
    for (int j = 0; j < out.microbatches; ++j) group.heads.push_back(head + std::int64_t{j} * random(0, 3));
    std::sort(group.heads.begin(), group.heads.end());
    out.groups.push_back(std::move(group));
    return static_cast<int>(out.groups.size()) - 1;
  };
  for (; stage < stages; ++stage) add(1, 1, -1, true);
  while (stage-- > 0) {
    const int gradient = add(kept_by_gradient, kept_by_gradient, -1, true);
    add(0, -1 - kept_by_gradient, gradient, false);
  }
  for (std::int64_t& limit : out.limit) limit += std::int64_t{stages} * kept_by_gradient;
  return out;
}

TEST(IdleSearch, EqualsAnExhaustiveSearch) {
  std::mt19937 engine(11);
  int waits = 0;  // cases with less idle time than if no op ran, and with some
  for (int i = 0; i < 1500; ++i) {
    SCOPED_TRACE(i);
    const RankProblem problem = random_rank(engine);
    std::vector<std::vector<std::int64_t>> tails;
    for (const RankProblem::Group& group : problem.groups) tails.emplace_back(group.heads.rbegin(), group.heads.rend());
    for (const RankProblem& of : {problem, problem.reversed(tails)}) {
      const std::int64_t until = std::uniform_int_distribution<int>(5, 80)(engine);
      const AllOrders all(of, until);
      IdleSearch search(of, until);
      // A search that ends early has a bound.
      search.extend(5);
      EXPECT_LE(search.bound(), all.least_idle());
      search.extend(1'000'000);
      EXPECT_TRUE(search.exact());
      EXPECT_EQ(search.bound(), all.least_idle());
      waits += all.least_idle() > 0 && all.least_idle() < until ? 1 : 0;
    }
  }
  EXPECT_GT(waits, 1500);
}

// Rank 7 of a V of eight, costs 5, 6 and 4 per stage, transfers of 2, memory for 16 stages: its first forward starts at
// 7 x 7 = 49, and the first gradient of stage 8 arrives at 49 + 2 x 5 + 7 x (5 + 6) + 14 x 2 = 164, before which 16
// forwards of 5 run: it idles for 84. Backwards from the end, 16 weight gradients and 16 input gradients run before the
// first forward of stage 8: that could start at 7 x 8 + 4 + 2 x 6 + 7 x (5 + 6) + 14 x 2 = 177, 17 later than 16 x 10.
TEST(AutoBounds, IncludeTheIdleTimeThatMemoryForces) {
  sim::PlacedProblem problem;
  problem.num_ranks = 8;
  problem.num_microbatches = 64;
  for (int s = 0; s < 16; ++s) problem.rank_of.push_back(s < 8 ? s : 15 - s);
  problem.shape.slice_lengths = {1};
  problem.times.assign(16, {.forward = Duration(5),
                            .input_gradient = Duration(6),
                            .weight_gradient = Duration(4),
                            .backward = Duration(10)});
  problem.bytes.assign(16, {.activations_to_weight_gradient = 1});
  problem.limit.assign(8, 16);
  problem.after.assign(8, Duration{});
  for (int s = 0; s < 16; ++s) {
    problem.forward_hop.emplace_back(s == 7 || s == 15 ? 0 : 2);
    problem.backward_hop.emplace_back(s == 8 || s == 0 ? 0 : 2);
  }
  const sim::OpTable table(problem);
  EXPECT_EQ(sim::auto_bounds(problem, table).makespan, 1969);
  EXPECT_EQ(sim::auto_bounds(problem, table, 20'000).makespan, 64 * 30 + 84 + 17);
}

}  // namespace
}  // namespace sluice::test
