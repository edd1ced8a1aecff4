#include "traces/figure/held.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "traces/figure/svg.h"
#include "traces/text/quantity_text.h"

namespace sluice::traces {
namespace {

constexpr double kPathColumn = 0.5;  // px

std::vector<HeldLevel> bytes_over_time(const RankMemory& memory) {
  std::vector<HeldLevel> levels;
  levels.reserve(memory.samples.size());
  for (const MemorySample& sample : memory.samples) {
    levels.push_back({sample.time, static_cast<double>(total(sample.bytes)) / kGiB});
  }
  return levels;
}

// A change of the number of microbatches in flight, at a time.
using Change = std::pair<Duration, double>;

void add_change(const Schedule& schedule, const Vertex& op, Duration start, Duration end, std::vector<Change>& out) {
  if (op.op == OpKind::I || of_vocabulary(op.op)) return;
  const MicrobatchShape& shape = schedule.shape(op.microbatch);
  const double fraction = static_cast<double>(shape.slice_lengths[op.slice]) / static_cast<double>(shape.tokens()) *
                          schedule.num_ranks() / std::max(schedule.num_ranks(), schedule.num_stages());
  const bool forward = op.op == OpKind::F;
  out.emplace_back(forward ? start : end, forward ? fraction : -fraction);
}

std::vector<HeldLevel> levels_of(std::vector<Change> changes) {
  std::sort(changes.begin(), changes.end());  // at equal times decreases come first
  std::vector<HeldLevel> levels = {{Duration{0}, 0}};
  double held = 0;
  for (const auto& [time, amount] : changes) {
    held += amount;
    if (levels.back().time != time) levels.push_back({time, held});
    levels.back().amount = std::max(held, 0.0);  // fractions such as 1/3 sum to 0 only approximately
  }
  return levels;
}

}  // namespace

Held held_over_time(const DrawnRun& run, std::span<const int> ranks) {
  const OpGraph& graph = *run.graph;
  Held held;
  held.bytes = graph.has_bytes() && !run.memory.empty();
  int most_rank = 0;
  for (int rank = 0; rank < graph.schedule().num_ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const double peak = held.bytes ? static_cast<double>(run.memory[r].peak_bytes) / kGiB  //
                                   : run.metrics->ranks[r].peak_in_flight;
    if (peak > held.most * (1 + 1e-12)) {
      held.most = peak;
      most_rank = rank;
    }
  }
  held.ranks.assign(ranks.begin(), ranks.end());
  const auto found = std::find(held.ranks.begin(), held.ranks.end(), most_rank);
  held.most_at = static_cast<std::size_t>(found - held.ranks.begin());
  if (found == held.ranks.end()) held.ranks.push_back(most_rank);

  if (held.bytes) {
    for (const int rank : held.ranks) held.levels.push_back(bytes_over_time(run.memory[rank]));
    return held;
  }
  std::vector<std::vector<Change>> changes(static_cast<std::size_t>(graph.schedule().num_ranks()));
  for (VertexId v = 0; v < graph.size(); ++v) {
    const Vertex& vertex = graph[v];
    if (vertex.kind != VertexKind::compute && vertex.kind != VertexKind::joint) continue;
    auto& of_rank = changes[graph.rank_of(v)];
    const Duration start = run.timeline->start[v];
    const Duration end = run.timeline->end[v];
    add_change(graph.schedule(), vertex, start, end, of_rank);
    if (vertex.kind == VertexKind::joint) {
      add_change(graph.schedule(), graph.joint_partner(vertex), start, end, of_rank);
    }
  }
  for (const int rank : held.ranks) held.levels.push_back(levels_of(std::move(changes[rank])));
  return held;
}

std::string held_path(std::span<const HeldLevel> levels, Duration end, const HeldScale& scale) {
  const auto x_of = [&](Duration time) { return scale.left + scale.px_per_ns * static_cast<double>(time.count()); };
  const auto y_of = [&](double amount) { return px(scale.bottom - scale.px_per_unit * amount); };
  std::string data;
  std::string y;  // of the current point
  const auto go = [&](const std::string& to) {
    if (to == y) return;
    data += "V" + to;
    y = to;
  };
  for (std::size_t i = 0; i < levels.size();) {
    const double x = x_of(levels[i].time);
    double least = levels[i].amount;
    double most = levels[i].amount;
    std::size_t next = i + 1;
    for (; next < levels.size() && x_of(levels[next].time) < x + kPathColumn; ++next) {
      least = std::min(least, levels[next].amount);
      most = std::max(most, levels[next].amount);
    }
    if (data.empty()) {
      y = y_of(levels[i].amount);
      data = fmt::format("M{} {}", px(x), y);
    } else if (next > i + 1 || y_of(levels[i].amount) != y) {
      data += "H" + px(x);
    }
    if (next > i + 1) {
      go(y_of(least));
      go(y_of(most));
    }
    go(y_of(levels[next - 1].amount));
    i = next;
  }
  if (!data.empty()) data += "H" + px(x_of(end));
  return data;
}

}  // namespace sluice::traces
