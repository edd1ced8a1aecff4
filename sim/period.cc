#include "sim/period.h"

#include <algorithm>
#include <vector>

#include "sim/sweep.h"

namespace sluice {
namespace {

Duration divided(Duration total, std::int64_t n) { return Duration{(total.count() + n / 2) / n}; }

}  // namespace

Duration repeated_period(const OpGraph& graph, const Prices& prices) {
  std::vector<std::size_t> lanes;  // of the state; collectives are not repeated
  for (std::size_t i = 0; i < graph.lanes().size(); ++i) {
    if (graph.lanes()[i].kind != LaneKind::collective) lanes.push_back(i);
  }
  constexpr std::int64_t kMaxVisits = 400'000'000;
  const auto size = std::max<std::int64_t>(1, graph.size());
  const std::int64_t most = 64 + 4 * static_cast<std::int64_t>(graph.schedule().num_ranks());
  std::int64_t rounds = std::clamp<std::int64_t>(kMaxVisits / size, 4, most);
  constexpr std::size_t kMaxCycle = 16;
  constexpr std::int64_t kLongest = 4'000'000'000'000'000'000;

  LaneTimes lane_free(graph.lanes().size(), Duration{0});
  std::vector<Duration> done;
  std::vector<LaneTimes> history;
  for (std::int64_t round = 0; round < rounds; ++round) {
    sweep<false>(graph, prices, lane_free, nullptr, done);
    history.push_back(lane_free);
    if (round == 0) {
      // Nanoseconds must not overflow: no repetition adds more than the first took.
      const Duration first = *std::max_element(lane_free.begin(), lane_free.end());
      rounds = std::min<std::int64_t>(rounds,
                                      std::max<std::int64_t>(2, kLongest / std::max<std::int64_t>(1, first.count())));
    }
    for (std::size_t cycle = 1; cycle < std::min(history.size(), kMaxCycle + 1); ++cycle) {
      const LaneTimes& before = history[history.size() - 1 - cycle];
      const Duration growth = lane_free[lanes[0]] - before[lanes[0]];
      const bool alike =
          std::all_of(lanes.begin(), lanes.end(), [&](std::size_t i) { return lane_free[i] - before[i] == growth; });
      if (alike) return divided(growth, static_cast<std::int64_t>(cycle));
    }
  }
  const auto window = static_cast<std::int64_t>(history.size() / 2);
  const LaneTimes& before = history[history.size() - 1 - static_cast<std::size_t>(window)];
  return divided(
      *std::max_element(lane_free.begin(), lane_free.end()) - *std::max_element(before.begin(), before.end()), window);
}

int batches_for_growth(int num_ranks, int num_microbatches) {
  const int drain = (num_ranks + num_microbatches - 1) / num_microbatches;
  return 2 * drain + 6;
}

BatchGrowth batch_growth(const OpGraph& graph, const Timeline& timeline) {
  const Schedule& schedule = graph.schedule();
  const int batches = schedule.num_batches();
  std::vector<Duration> done(static_cast<std::size_t>(batches), Duration{0});
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    if (vertex.kind != VertexKind::compute) continue;
    auto& at = done[static_cast<std::size_t>(vertex.microbatch / schedule.num_microbatches())];
    at = std::max(at, timeline.end[v]);
  }
  const int drain = (schedule.num_ranks() + schedule.num_microbatches() - 1) / schedule.num_microbatches();
  const int last = std::max(0, batches - 1 - drain);
  const auto at = [&](int batch) { return batch < 0 ? Duration{0} : done[static_cast<std::size_t>(batch)]; };
  for (int cycle = 1; cycle <= 4 && 2 * cycle <= last; ++cycle) {
    const Duration growth = at(last) - at(last - cycle);
    if (growth == at(last - cycle) - at(last - 2 * cycle)) return {divided(growth, cycle), true};
  }
  return {last > 0 ? at(last) - at(last - 1) : at(0), false};
}

}  // namespace sluice
