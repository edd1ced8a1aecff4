#include "sim/planner/rank_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "model/to_size.h"
#include "sim/planner/auto_bounds.h"

namespace sluice::test {
namespace {

using sim::IdleSearch;
using sim::RankProblem;

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
