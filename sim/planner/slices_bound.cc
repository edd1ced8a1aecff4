#include "sim/planner/slices_bound.h"

#include <algorithm>

#include "model/cost/price.h"
#include "model/slicing/terapipe.h"

namespace sluice::sim {
namespace {

// Minimum, over all cuts, of the sum of `own` of all slices and `outer` of the first: a shortest path over the
// sequence.
Duration least(const SequenceCut& cut, int slices, const auto& own, const auto& outer) {
  auto row = [&](std::int64_t context, std::span<Duration> out) {
    const std::int64_t begin = context / cut.granularity;
    for (std::size_t n = 0; n < out.size(); ++n) {
      const auto granules = static_cast<std::int64_t>(n) + 1;
      out[n] = own(begin, granules);
      if (begin == 0) out[n] += outer(granules);
    }
  };
  return best_slices({.forward = {.tokens = cut.tokens, .granularity = cut.granularity, .row = std::move(row)},
                      .min_slices = slices,
                      .max_slices = slices})
      .latency;
}

}  // namespace

SlicesBound::SlicesBound(const OpGraph& graph, const ScenarioCosts& costs, const StageTimes& times)
    : times_(times),
      microbatches_(graph.schedule().total_microbatches()),
      split_(graph.schedule().split_backward()),
      blocking_(costs.lowering_options(graph.schedule().weight_policy()).blocking_transfers) {
  const Schedule& schedule = graph.schedule();
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto stages = schedule.stages_of(rank);
    ranks_.push_back({.stages = {stages.begin(), stages.end()}});
  }
  find_steps(graph, costs.cost());
  last_steps_ = ranks_[schedule.rank_of(0, 0)].steps;
  find_sends(schedule, costs);
}

// Finds the longest path of collectives and optimizer steps after the last op of each rank's list. Their times do not
// depend on the cut.
void SlicesBound::find_steps(const OpGraph& graph, const CostModel& cost) {
  const Prices prices = price(graph, cost);
  std::vector<Duration> after(graph.size(), Duration{0});
  std::vector<char> seen(ranks_.size(), 0);
  for (VertexId v = graph.size(); v-- > 0;) {
    const VertexKind kind = graph[v].kind;
    if (kind == VertexKind::collective || kind == VertexKind::optimizer) {
      const Duration length = prices.duration[v] + after[v];
      for (const VertexId need : graph.needs(v)) after[need] = std::max(after[need], length);
    } else if (kind == VertexKind::compute) {
      const auto rank = static_cast<std::size_t>(graph.rank_of(v));
      if (seen[rank] == 0) ranks_[rank].steps = after[v];
      seen[rank] = 1;
    }
  }
}

void SlicesBound::find_sends(const Schedule& schedule, const ScenarioCosts& costs) {
  const SequenceCut& cut = times_.cut();
  const CostModel& cost = costs.cost();
  const int stages = schedule.num_stages();
  const auto sent = [&](int from_stage, int to_stage, std::int64_t bytes) {
    const int from = schedule.rank_of(from_stage, 0);
    const int to = schedule.rank_of(to_stage, 0);
    if (from == to) return Duration{0};
    return from_seconds(cost.transfer(from, to, bytes).occupied_s, "transfer") +
           from_seconds(cost.transfer(from, to, 0).latency_s, "latency");
  };
  for (int stage = 0; stage < stages; ++stage) {
    auto& forward = sends_forward_.emplace_back();
    auto& gradient = sends_gradient_.emplace_back();
    for (std::int64_t granules = 1; granules <= times_.granules(); ++granules) {
      // The last granule may be shorter than the others: a lower bound for all.
      const std::int64_t tokens = granules * cut.granularity - (times_.granules() * cut.granularity - cut.tokens);
      MicrobatchShape shape{.sequences = cut.sequences, .slice_lengths = {tokens}};
      if (tokens < cut.tokens) shape.slice_lengths.push_back(cut.tokens - tokens);
      const SliceBytes bytes = costs.footprint() == nullptr ? SliceBytes{} : costs.footprint()->slice(stage, shape, 0);
      forward.push_back(stage + 1 < stages ? sent(stage, stage + 1, bytes.transfer_forward) : Duration{0});
      gradient.push_back(stage > 0 ? sent(stage, stage - 1, bytes.transfer_backward) : Duration{0});
    }
  }
}

// Time before the rank's first op, an F of its first stage: the first slice passes all earlier stages.
Duration SlicesBound::head(const Rank& rank, std::int64_t granules) const {
  Duration sum{};
  for (int stage = 0; stage < rank.stages.front(); ++stage) {
    sum += times_.forward(stage, 0, granules) + send(sends_forward_, stage, granules);
  }
  return sum;
}

// Time after the rank's last backward, which is of its first stage and a first slice: the earlier stages, and then the
// last steps of the rank of stage 0. Recomputation begins when the gradient has arrived.
Duration SlicesBound::return_path(const Rank& rank, std::int64_t granules) const {
  Duration sum = last_steps_;
  for (int stage = rank.stages.front(); stage > 0; --stage) {
    sum += send(sends_gradient_, stage, granules) + times_.recompute(stage - 1, 0, granules) +
           times_.gradient(stage - 1, 0, granules);
  }
  if (rank.stages.front() > 0) sum += times_.weight(0, 0, granules);
  return sum;
}

Duration SlicesBound::work(const Rank& rank, std::int64_t begin, std::int64_t granules, bool weights) const {
  Duration sum{};
  for (const int stage : rank.stages) {
    sum += times_.forward(stage, begin, granules) + times_.recompute(stage, begin, granules) +
           times_.gradient(stage, begin, granules);
    if (weights) sum += times_.weight(stage, begin, granules);
    if (blocking_) sum += send(sends_forward_, stage, granules) + send(sends_gradient_, stage, granules);
  }
  return microbatches_ * sum;
}

Duration SlicesBound::operator()(int slices) const {
  Duration bound{};
  for (const Rank& rank : ranks_) {
    // No op of the rank waits for its last transfer.
    const auto before = [&](std::int64_t n) {
      return head(rank, n) - (blocking_ ? send(sends_gradient_, rank.stages.front(), n) : Duration{0});
    };
    // All of its work and the steps after it; without separate Ws also the return path.
    bound = std::max(bound, least(
                                times_.cut(), slices, [&](auto begin, auto n) { return work(rank, begin, n, true); },
                                [&](auto n) {
                                  return before(n) + (split_ ? rank.steps : std::max(rank.steps, return_path(rank, n)));
                                }));
    if (!split_) continue;
    // Its work up to the last input gradient and the return path of that.
    bound = std::max(bound, least(
                                times_.cut(), slices, [&](auto begin, auto n) { return work(rank, begin, n, false); },
                                [&](auto n) { return before(n) + return_path(rank, n); }));
  }
  return bound;
}

}  // namespace sluice::sim
