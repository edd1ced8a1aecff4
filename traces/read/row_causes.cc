#include "traces/read/row_causes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/to_size.h"

namespace sluice::traces {
namespace {

bool is_op(RowKind kind) { return occupies_rank(kind) && kind != RowKind::recompute && kind != RowKind::optimizer; }

Op schedule_op(const RowOp& op, bool joined) {
  return {.microbatch = op.microbatch, .stage = op.stage, .slice = op.slice, .kind = op.kind, .joined = joined};
}

// Reconstructs the schedule of the rows: placement and order. Returns nullopt if some op is clearly missing; other
// missing ops are detected when a Schedule is built from it.
std::optional<ScheduleParts> parts_of(const RunRows& run) {
  std::vector<const OpRow*> ops;
  for (const OpRow& row : run.rows) {
    if (is_op(row.kind)) ops.push_back(&row);
  }
  std::stable_sort(ops.begin(), ops.end(), [](const OpRow* a, const OpRow* b) {
    return std::pair(a->start, a->end) < std::pair(b->start, b->end);
  });
  ScheduleParts parts{.family = "custom", .num_ranks = run.num_ranks, .num_stages = 0, .num_microbatches = 0};
  std::int64_t forwards = 0;
  bool passes = false;  // of the vocabulary, whose barriers rows do not name
  const auto each = [&](const auto& visit) {
    for (const OpRow* row : ops) {
      visit(*row, row->op);
      if (row->kind == RowKind::joint) visit(*row, row->partner);
    }
  };
  each([&](const OpRow&, const RowOp& op) {
    parts.num_stages = std::max(parts.num_stages, op.stage + 1);
    parts.num_microbatches = std::max(parts.num_microbatches, op.microbatch + 1);
    forwards += op.kind == OpKind::F ? 1 : 0;
    passes |= of_vocabulary(op.kind);
  });
  if (passes || forwards < std::int64_t{parts.num_stages} * parts.num_microbatches) return std::nullopt;

  // Microbatches with a different number of slices have their own shape, those on different ranks their own route.
  std::vector<int> slices(to_size(parts.num_microbatches), 1);
  std::vector<std::vector<int>> ranks(to_size(parts.num_microbatches), std::vector<int>(to_size(parts.num_stages), 0));
  each([&](const OpRow& row, const RowOp& op) {
    slices[op.microbatch] = std::max(slices[op.microbatch], op.slice + 1);
    ranks[op.microbatch][op.stage] = row.rank;
  });
  parts.shapes.clear();
  std::map<int, int> shape_of;
  std::map<std::vector<int>, std::uint8_t> route_of;
  for (int microbatch = 0; microbatch < parts.num_microbatches; ++microbatch) {
    const int num_slices = slices[microbatch];
    const auto [shape, new_shape] = shape_of.try_emplace(num_slices, static_cast<int>(parts.shapes.size()));
    if (new_shape) parts.shapes.push_back({.slice_lengths = std::vector<std::int64_t>(to_size(num_slices), 1)});
    parts.shape_of.push_back(shape->second);
    const auto [route, new_route] =
        route_of.try_emplace(ranks[microbatch], static_cast<std::uint8_t>(parts.routes.size()));
    if (new_route) parts.routes.push_back(ranks[microbatch]);
    if (parts.routes.size() > 2) return std::nullopt;
    parts.route_of.push_back(route->second);
  }
  parts.orders.resize(run.num_ranks);
  for (const OpRow* row : ops) {
    auto& order = parts.orders[row->rank];
    order.push_back(schedule_op(row->op, row->kind == RowKind::joint));
    if (row->kind == RowKind::joint) order.push_back(schedule_op(row->partner, false));
  }
  return parts;
}

LoweringOptions options_of(const RunRows& run) {
  LoweringOptions options;
  for (const OpRow& row : run.rows) {
    options.recompute |= row.kind == RowKind::recompute;
    if (row.kind != RowKind::collective) continue;
    if (row.collective == CollectiveKind::gradient_reduce) options.data_parallel = 2;
    options.gather_parameters |= row.collective == CollectiveKind::parameter_gather;
    options.tied_embedding |= row.collective == CollectiveKind::tied_embedding;
    options.global_norm |= row.collective == CollectiveKind::global_norm;
  }
  return options;
}

// Finds the row of a vertex of a graph.
class Lookup {
 public:
  explicit Lookup(const RunRows& run) : run_(run) {
    for (std::size_t i = 0; i < run.rows.size(); ++i) entries_.emplace_back(identity_of(run.rows[i]), i);
    std::sort(entries_.begin(), entries_.end());
  }

  const OpRow* find(const OpGraph& graph, VertexId v) const {
    OpRow wanted = row_of(graph, v);
    const auto found =
        std::lower_bound(entries_.begin(), entries_.end(), std::pair(identity_of(wanted), std::size_t{0}));
    if (found == entries_.end() || found->first != identity_of(wanted)) return nullptr;
    return &run_.rows[found->second];
  }

 private:
  const RunRows& run_;
  std::vector<std::pair<RowIdentity, std::size_t>> entries_;
};

Timeline timeline_of(const RunRows& run, const OpGraph& graph) {
  Timeline timeline;
  timeline.start.resize(graph.size());
  timeline.end.resize(graph.size());
  timeline.lane_latency.resize(graph.lanes().size(), Duration::zero());
  const Lookup rows(run);
  std::vector<char> unknown(graph.size(), 0);
  for (VertexId v = 0; v < graph.size(); ++v) {
    if (const OpRow* row = rows.find(graph, v)) {
      timeline.start[v] = row->start;
      timeline.end[v] = row->end + row->latency;
    } else {
      Duration met{};
      for (const VertexId need : graph.needs(v)) met = std::max(met, timeline.end[need]);
      timeline.start[v] = timeline.end[v] = met;
      unknown[v] = 1;
    }
    // A transfer without a row ends when the vertex that depends on it starts.
    for (const VertexId need : graph.needs(v)) {
      if (unknown[need] == 0 || graph[need].kind != VertexKind::transfer || graph[v].lane == graph[need].lane) continue;
      timeline.end[need] = std::max(timeline.end[need], timeline.start[v]);
      unknown[need] = 0;
    }
  }
  return timeline;
}

bool adds_up(const RunRows& run, const std::vector<IdleByCause>& idle) {
  Duration makespan{};
  std::vector<Duration> sums(idle.size(), Duration::zero());
  for (const OpRow& row : run.rows) {
    makespan = std::max(makespan, row.end);
    if (occupies_rank(row.kind)) sums[row.rank] += row.end - row.start;
  }
  for (std::size_t r = 0; r < idle.size(); ++r) {
    if (std::accumulate(idle[r].begin(), idle[r].end(), sums[r]) != makespan) return false;
  }
  return true;
}

}  // namespace

std::vector<IdleByCause> idle_of_rows(const RunRows& run) {
  const auto later = [](const OpRow& row) { return row.kind == RowKind::optimizer && row.op.microbatch > 0; };
  if (std::any_of(run.rows.begin(), run.rows.end(), later)) return {};
  std::optional<ScheduleParts> parts = parts_of(run);
  if (!parts) return {};
  try {
    const Schedule schedule(std::move(*parts));
    const OpGraph graph = lower(schedule, options_of(run));
    std::vector<IdleByCause> idle = idle_by_cause(graph, timeline_of(run, graph));
    if (!adds_up(run, idle)) return {};
    return idle;
  } catch (const ScheduleError&) {
    return {};
  } catch (const InputError&) {
    return {};
  }
}

}  // namespace sluice::traces
