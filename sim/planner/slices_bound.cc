#include "sim/planner/slices_bound.h"

#include <algorithm>

#include "model/slicing/terapipe.h"

namespace sluice {
namespace {

// What a rank does and waits for, as parts of a bound.
struct RankBound {
  int first_stage = 0;  // the earliest that the rank holds: its first F and its last backward are of it
  std::span<const int> stages;
  Duration hops{};   // latency from stage 0 to it, in one direction
  Duration steps{};  // the optimizer's, of all of its stages
};

std::vector<RankBound> ranks_of(const Schedule& schedule, const CostModel& cost) {
  std::vector<RankBound> out;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    RankBound bound{.stages = schedule.stages_of(rank)};
    bound.first_stage = bound.stages.front();
    for (int stage = 0; stage < bound.first_stage; ++stage) {
      const int from = schedule.rank_of(stage, 0);
      const int to = schedule.rank_of(stage + 1, 0);
      if (from != to) bound.hops += from_seconds(cost.transfer(from, to, 0).latency_s, "latency");
    }
    for (const int stage : bound.stages) bound.steps += from_seconds(cost.optimizer_s(stage), "optimizer step");
    out.push_back(bound);
  }
  return out;
}

// The least, over cuts, of `own` of all slices and `outer` of the first.
Duration least(const StageTimes& times, int slices, const auto& own, const auto& outer) {
  const SequenceCut& cut = times.cut();
  auto row = [&](std::int64_t context, std::span<Duration> out) {
    const std::int64_t begin = context / cut.granularity;
    for (std::size_t n = 0; n < out.size(); ++n) {
      const auto granules = static_cast<std::int64_t>(n) + 1;
      out[n] = own(begin, granules);
      if (begin == 0) out[n] += outer(granules);
    }
  };
  const SlicingProblem problem{.forward = {.tokens = cut.tokens, .granularity = cut.granularity, .row = std::move(row)},
                               .min_slices = slices,
                               .max_slices = slices};
  return best_slices(problem).latency;
}

}  // namespace

Duration slices_lower_bound(const Schedule& schedule, const ScenarioCosts& costs, const StageTimes& times, int slices) {
  const CostModel& cost = costs.cost();
  const Duration last_step = from_seconds(cost.optimizer_s(0), "optimizer step");
  const int microbatches = schedule.total_microbatches();
  Duration bound{};
  for (const RankBound& rank : ranks_of(schedule, cost)) {
    // Before its first op and after its last: by the first slice, whose context is none.
    const auto head = [&](std::int64_t granules) {
      Duration sum = rank.hops;
      for (int stage = 0; stage < rank.first_stage; ++stage) sum += times.forward(stage, 0, granules);
      return sum;
    };
    // Recomputation may be over before the gradient comes.
    const auto tail = [&](std::int64_t granules) {
      Duration sum = rank.hops + last_step;
      for (int stage = 0; stage < rank.first_stage; ++stage) sum += times.gradient(stage, 0, granules);
      if (rank.first_stage > 0) sum += times.weight(0, 0, granules);
      return sum;
    };
    const auto work = [&](std::int64_t begin, std::int64_t granules, bool weights) {
      Duration sum{};
      for (const int stage : rank.stages) {
        sum += times.forward(stage, begin, granules) + times.gradient(stage, begin, granules) +
               times.recompute(stage, begin, granules);
        if (weights) sum += times.weight(stage, begin, granules);
      }
      return microbatches * sum;
    };
    const bool split = schedule.split_backward();
    // All of its work, its own steps behind it; where no W is apart also the way back.
    bound = std::max(
        bound, least(
                   times, slices, [&](auto begin, auto n) { return work(begin, n, true); },
                   [&](std::int64_t n) { return head(n) + (split ? rank.steps : std::max(rank.steps, tail(n))); }));
    // Its work until the last input gradient is on its way back.
    if (split) {
      bound = std::max(bound, least(
                                  times, slices, [&](auto begin, auto n) { return work(begin, n, false); },
                                  [&](std::int64_t n) { return head(n) + tail(n); }));
    }
  }
  return bound;
}

}  // namespace sluice
