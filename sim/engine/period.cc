#include "sim/engine/period.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "model/to_size.h"
#include "sim/engine/contention.h"
#include "sim/engine/sweep.h"

namespace sluice::sim {
namespace {

Duration divided(Duration total, std::int64_t n) { return Duration{(total.count() + n / 2) / n}; }

// The growth per repetition if all lanes grew equally over the last `cycle` ones, and with `again` also over the
// `cycle` before these.
std::optional<Duration> constant_growth(const std::vector<LaneTimes>& history, const std::vector<std::size_t>& lanes,
                                        bool again) {
  constexpr std::size_t kMaxCycle = 16;
  const auto growth = [&](std::size_t last, std::size_t cycle) -> std::optional<Duration> {
    const LaneTimes& now = history[last];
    const LaneTimes& before = history[last - cycle];
    const Duration first = now[lanes[0]] - before[lanes[0]];
    const bool alike =
        std::all_of(lanes.begin(), lanes.end(), [&](std::size_t i) { return now[i] - before[i] == first; });
    return alike ? std::optional(first) : std::nullopt;
  };
  const std::size_t last = history.size() - 1;
  for (std::size_t cycle = 1; cycle <= kMaxCycle && (again ? 2 : 1) * cycle <= last; ++cycle) {
    const std::optional<Duration> found = growth(last, cycle);
    if (found && (!again || growth(last - cycle, cycle) == found)) {
      return divided(*found, static_cast<std::int64_t>(cycle));
    }
  }
  return std::nullopt;
}

Duration mean_growth(const std::vector<LaneTimes>& history) {
  const auto window = static_cast<std::int64_t>(history.size() / 2);
  const LaneTimes& now = history.back();
  const LaneTimes& before = history[history.size() - 1 - static_cast<std::size_t>(window)];
  return divided(*std::max_element(now.begin(), now.end()) - *std::max_element(before.begin(), before.end()), window);
}

// Upper limits of the repetitions: for the number of visited vertices, and so that nanoseconds do not overflow if no
// repetition takes longer than `longest`.
std::int64_t most_rounds(const OpGraph& graph, std::int64_t max_visits) {
  const auto size = std::max<std::int64_t>(1, graph.size());
  const std::int64_t most = 64 + 4 * static_cast<std::int64_t>(graph.schedule().num_ranks());
  return std::clamp<std::int64_t>(max_visits / size, 4, most);
}
std::int64_t rounds_in_range(std::int64_t rounds, Duration longest) {
  constexpr std::int64_t kLongest = 4'000'000'000'000'000'000;
  return std::min(rounds, std::max<std::int64_t>(2, kLongest / std::max<std::int64_t>(1, longest.count())));
}

Duration contended_period(const OpGraph& graph, const Prices& prices, const std::vector<std::size_t>& lanes) {
  constexpr std::int64_t kMaxVisits = 40'000'000;
  constexpr std::int64_t kMostRounds = 1000;
  // At any time something runs at full speed or a resource is used to its capacity, so no repetition takes longer than
  // all its vertices in sequence, each transfer rounded up.
  Duration all{0};
  for (VertexId v = 0; v < graph.size(); ++v) {
    all += prices.duration[v] + prices.lane_latency[graph[v].lane] + Duration{1};
  }
  const std::int64_t rounds = rounds_in_range(std::min(most_rounds(graph, kMaxVisits), kMostRounds), all);
  std::optional<Duration> period;
  repeat_contended(graph, prices, static_cast<int>(rounds), [&](const std::vector<LaneTimes>& so_far) {
    period = constant_growth(so_far, lanes, true);
    if (!period && std::ssize(so_far) == rounds) period = mean_growth(so_far);
    return period.has_value();
  });
  return *period;
}

// Whether transfers share a resource among themselves; collectives are not repeated.
bool transfers_share(const OpGraph& graph, const LinkSharing& sharing) {
  std::vector<int> users(to_size(sharing.num_resources), 0);
  const std::size_t links = graph.lanes().size() - to_size(std::int64_t{2} * graph.schedule().num_ranks());
  for (std::size_t link = 0; link < std::min(links, sharing.links.size()); ++link) {
    for (const ResourceUse& use : sharing.links[link].uses) {
      if (++users[to_size(use.resource)] > 1) return true;
    }
  }
  return false;
}

}  // namespace

Duration repeated_period(const OpGraph& graph, const Prices& prices) {
  std::vector<std::size_t> lanes;  // collectives are not repeated
  for (std::size_t i = 0; i < graph.lanes().size(); ++i) {
    if (graph.lanes()[i].kind != LaneKind::collective) lanes.push_back(i);
  }
  if (transfers_share(graph, prices.sharing)) return contended_period(graph, prices, lanes);
  constexpr std::int64_t kMaxVisits = 400'000'000;
  std::int64_t rounds = most_rounds(graph, kMaxVisits);
  LaneTimes lane_free(graph.lanes().size(), Duration{0});
  std::vector<Duration> done;
  std::vector<LaneTimes> history;
  for (std::int64_t round = 0; round < rounds; ++round) {
    sweep<false>(graph, prices, lane_free, nullptr, done);
    history.push_back(lane_free);
    // No repetition takes longer than the first.
    if (round == 0) rounds = rounds_in_range(rounds, *std::max_element(lane_free.begin(), lane_free.end()));
    if (const std::optional<Duration> growth = constant_growth(history, lanes, false)) return *growth;
  }
  return mean_growth(history);
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
    auto& at = done[vertex.microbatch / schedule.num_microbatches()];
    at = std::max(at, timeline.end[v]);
  }
  const int drain = (schedule.num_ranks() + schedule.num_microbatches() - 1) / schedule.num_microbatches();
  const int last = std::max(0, batches - 1 - drain);
  const auto at = [&](int batch) { return batch < 0 ? Duration{0} : done[batch]; };
  for (int cycle = 1; cycle <= 4 && 2 * cycle <= last; ++cycle) {
    const Duration growth = at(last) - at(last - cycle);
    if (growth == at(last - cycle) - at(last - 2 * cycle)) return {divided(growth, cycle), true};
  }
  return {last > 0 ? at(last) - at(last - 1) : at(0), false};
}

}  // namespace sluice::sim
