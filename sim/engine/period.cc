#include "sim/engine/period.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "model/graph/links.h"
#include "model/to_size.h"
#include "sim/engine/contention.h"
#include "sim/engine/sweep.h"

namespace sluice::sim {
namespace {

Duration divided(Duration total, std::int64_t n) { return Duration{(total.count() + n / 2) / n}; }

// All lanes but those of collectives, which are not repeated.
std::vector<std::size_t> repeated_lanes(const OpGraph& graph) {
  std::vector<std::size_t> lanes;
  for (std::size_t i = 0; i < graph.lanes().size(); ++i) {
    if (graph.lanes()[i].kind != LaneKind::collective) lanes.push_back(i);
  }
  return lanes;
}

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
std::int64_t most_rounds(const OpGraph& graph, std::int64_t graph_size, std::int64_t max_visits) {
  const auto size = std::max<std::int64_t>(1, graph_size);
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
  const std::int64_t rounds = rounds_in_range(std::min(most_rounds(graph, graph.size(), kMaxVisits), kMostRounds), all);
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
  const std::size_t links = to_size(num_links(graph));
  for (std::size_t link = 0; link < std::min(links, sharing.links.size()); ++link) {
    for (const ResourceUse& use : sharing.links[link].uses) {
      if (++users[to_size(use.resource)] > 1) return true;
    }
  }
  return false;
}

// Batches that the drain of the pipeline takes part in, and after which latencies repeat.
int drain_of(int ranks, int microbatches) { return (ranks + microbatches - 1) / microbatches; }
int cycle_of(int ranks, int microbatches) { return ranks / std::gcd(ranks, microbatches); }

// The batches of a schedule without a flush whose vertices and dependencies are those of the batch before.
class BatchesAlike {
 public:
  explicit BatchesAlike(const OpGraph& graph) : graph_(graph), batches_(graph.schedule().num_batches()) {
    before_.assign(graph.size(), kNoVertex);
    by_batch_.resize(to_size(batches_));
    pair_vertices();
    std::vector<char> alike(to_size(batches_), 1);
    alike[0] = 0;
    for (VertexId v = 0; v < graph.size(); ++v) {
      const int batch = batch_of(v);
      if (!follows(v)) alike[to_size(batch)] = 0;
      for (const VertexId need : graph.needs(v)) reach_ = std::max(reach_, batch - batch_of(need));
    }
    const auto last = std::find(alike.rbegin(), alike.rend(), 1);
    end_ = static_cast<int>(alike.rend() - last);
    begin_ = end_ - static_cast<int>(std::find(last, alike.rend(), 0) - last);
  }

  // If all vertices of the last batches alike, as many as dependencies reach back, start and end as much later than
  // those some batches before: the growth per batch. All that follow alike are then as much later, by induction along
  // their dependencies.
  std::optional<Duration> constant_growth(const Timeline& timeline) const {
    for (int cycle = 1; end_ - reach_ - (cycle - 1) >= begin_; ++cycle) {
      std::optional<Duration> growth;
      bool constant = true;
      for (int batch = end_ - 1; constant && batch >= end_ - reach_; --batch) {
        constant = grows(timeline, batch, cycle, growth);
      }
      if (constant && growth) return divided(*growth, cycle);
    }
    return std::nullopt;
  }

 private:
  static constexpr VertexId kNoVertex = ~VertexId{0};

  // Of an optimizer step after every backward: that of its microbatch.
  int batch_of(VertexId v) const {
    const Vertex& vertex = graph_[v];
    const bool step = vertex.kind == VertexKind::collective || vertex.kind == VertexKind::optimizer;
    const bool by_batch = step && graph_.schedule().weight_policy() != WeightPolicy::stashed;
    return by_batch ? vertex.microbatch : vertex.microbatch / graph_.schedule().num_microbatches();
  }

  // Pairs the i-th vertex of a batch on a lane with the i-th of the batch before.
  void pair_vertices() {
    std::vector<std::vector<VertexId>> of(graph_.lanes().size() * to_size(batches_));
    for (VertexId v = 0; v < graph_.size(); ++v) {
      by_batch_[to_size(batch_of(v))].push_back(v);
      of[to_size(graph_[v].lane) * to_size(batches_) + to_size(batch_of(v))].push_back(v);
    }
    for (std::size_t i = 1; i < of.size(); ++i) {
      if (i % to_size(batches_) == 0 || of[i].size() != of[i - 1].size()) continue;
      for (std::size_t k = 0; k < of[i].size(); ++k) before_[of[i][k]] = of[i - 1][k];
    }
  }

  // Whether a vertex is that of the batch before with other microbatches, and so are the ones it waits for.
  bool follows(VertexId v) const {
    const VertexId early = before_[v];
    if (early == kNoVertex) return false;
    const Vertex& a = graph_[early];
    const Vertex& b = graph_[v];
    if (a.kind != b.kind || a.op != b.op || a.stage != b.stage || a.slice != b.slice) return false;
    const auto needs = graph_.needs(v);
    const auto before = graph_.needs(early);
    return std::equal(needs.begin(), needs.end(), before.begin(), before.end(),
                      [&](VertexId late, VertexId other) { return before_[late] == other; });
  }

  bool grows(const Timeline& timeline, int batch, int cycle, std::optional<Duration>& growth) const {
    const auto& vertices = by_batch_[to_size(batch)];
    return std::all_of(vertices.begin(), vertices.end(), [&](VertexId v) {
      VertexId early = v;
      for (int i = 0; i < cycle; ++i) early = before_[early];
      const Duration later = timeline.start[v] - timeline.start[early];
      if (!growth) growth = later;
      return later == *growth && timeline.end[v] - timeline.end[early] == later;
    });
  }

  const OpGraph& graph_;
  int batches_;
  std::vector<VertexId> before_;                 // by vertex: its counterpart in the batch before
  std::vector<std::vector<VertexId>> by_batch_;  // the vertices of each batch
  int reach_ = 1;                                // batches from a vertex back to the earliest that it waits for
  int begin_ = 0;                                // batches alike: from begin_ to end_
  int end_ = 0;
};

}  // namespace

Duration repeated_period(const OpGraph& graph, const Prices& prices) {
  if (transfers_share(graph, prices.sharing)) return contended_period(graph, prices, repeated_lanes(graph));
  std::vector<Duration> done;
  return *repeated_period(graph, graph.size(), [&](LaneTimes& lane_free) {
    sweep<false>(graph, prices, lane_free, nullptr, done);
    return true;
  });
}

std::optional<Duration> repeated_period(const OpGraph& graph, std::int64_t size,
                                        const std::function<bool(LaneTimes&)>& repeat) {
  const std::vector<std::size_t> lanes = repeated_lanes(graph);
  constexpr std::int64_t kMaxVisits = 400'000'000;
  std::int64_t rounds = most_rounds(graph, size, kMaxVisits);
  LaneTimes lane_free(graph.lanes().size(), Duration{0});
  std::vector<LaneTimes> history;
  for (std::int64_t round = 0; round < rounds; ++round) {
    if (!repeat(lane_free)) return std::nullopt;
    history.push_back(lane_free);
    // No repetition takes longer than the first.
    if (round == 0) rounds = rounds_in_range(rounds, *std::max_element(history[0].begin(), history[0].end()));
    if (const std::optional<Duration> growth = constant_growth(history, lanes, false)) return growth;
  }
  return mean_growth(history);
}

int batches_for_growth(int num_ranks, int num_microbatches) {
  return 2 * drain_of(num_ranks, num_microbatches) + 2 * cycle_of(num_ranks, num_microbatches) + 6;
}

BatchGrowth batch_growth(const OpGraph& graph, const Timeline& timeline) {
  const BatchesAlike alike(graph);
  if (const auto growth = alike.constant_growth(timeline)) return {*growth, true};
  const Schedule& schedule = graph.schedule();
  std::vector<Duration> done(to_size(schedule.num_batches()), Duration{0});
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (graph[v].kind != VertexKind::compute) continue;
    Duration& at = done[graph[v].microbatch / schedule.num_microbatches()];
    at = std::max(at, timeline.end[v]);
  }
  const int last =
      std::max(0, schedule.num_batches() - 1 - drain_of(schedule.num_ranks(), schedule.num_microbatches()));
  if (last == 0) return {done[0], false};
  const int cycle = cycle_of(schedule.num_ranks(), schedule.num_microbatches());
  const int window = std::max(std::min(last, cycle), last / 2 / cycle * cycle);
  return {divided(done[last] - done[last - window], window), false};
}

}  // namespace sluice::sim
