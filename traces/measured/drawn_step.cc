#include "traces/measured/drawn_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/median.h"
#include "model/to_size.h"

namespace sluice::traces {
namespace {

struct Interval {
  Duration start{};
  Duration end{};
};

class StepDrawer {
 public:
  StepDrawer(const MeasuredRun& run, int step, int replica) : run_(run) {
    out_.step = run.steps[to_size(step)];
    out_.replica = replica;
    ScheduleParts parts;
    parts.family = "custom";
    parts.num_ranks = run.ranks;
    parts.num_stages = run.stages();
    parts.num_microbatches = run.microbatches;
    parts.routes.resize(1);
    parts.routes[0].resize(to_size(run.stages()));
    parts.orders.resize(to_size(run.ranks));
    for (int rank = 0; rank < run.ranks; ++rank) {
      for (int chunk = 0; chunk < run.chunks; ++chunk) parts.routes[0][to_size(run.stage(rank, chunk))] = rank;
      for (const MeasuredOp& op : run.of(step, run.worker(replica, rank))) add(op, rank, parts.orders[to_size(rank)]);
    }
    out_.schedule = std::make_unique<Schedule>(std::move(parts));
  }

  DrawnStep draw() && {
    const auto has = [&](MeasuredKind kind) { return has_[to_size(static_cast<int>(kind))]; };
    LoweringOptions options;
    options.data_parallel = has(MeasuredKind::gradient_scatter) || has(MeasuredKind::parameter_gather) ? 2 : 1;
    options.reduce_gradients = has(MeasuredKind::gradient_scatter);
    options.gather_parameters = has(MeasuredKind::parameter_gather);
    options.overlap_param_gather = options.gather_parameters;
    // Graphs have it after the reductions, as newer versions of Megatron-LM; before them it is idle time.
    const Interval* embedding = find(MeasuredKind::embedding_reduce, 0);
    const Interval* reduced = find(MeasuredKind::gradient_scatter, 0);
    options.tied_embedding =
        run_.ranks > 1 && embedding != nullptr && (reduced == nullptr || reduced->end <= embedding->start);
    options.global_norm = has(MeasuredKind::clip);
    out_.graph = std::make_unique<OpGraph>(lower(*out_.schedule, options));
    time_vertices();
    out_.metrics = measure(*out_.graph, out_.timeline);
    return std::move(out_);
  }

 private:
  // Kind, stage (rank for the optimizer and clipping) and microbatch or number.
  using Key = std::tuple<MeasuredKind, int, int>;

  void add(const MeasuredOp& op, int rank, std::vector<Op>& order) {
    has_[to_size(static_cast<int>(op.kind))] = true;
    const int stage = run_.stage(rank, op.chunk);
    if (is_pass(op.kind)) {
      constexpr std::array<OpKind, 4> kKinds = {OpKind::F, OpKind::B, OpKind::I, OpKind::W};
      order.push_back({.microbatch = op.microbatch,
                       .stage = static_cast<std::int16_t>(stage),
                       .kind = kKinds[to_size(static_cast<int>(op.kind))]});
    }
    const bool of_rank = op.kind == MeasuredKind::optimizer || op.kind == MeasuredKind::clip;
    const bool of_microbatch = is_pass(op.kind) || is_pipeline_transfer(op.kind);
    const Key key{op.kind, of_rank ? rank : stage, of_microbatch ? op.microbatch : 0};
    const auto [found, is_new] = times_.try_emplace(key, Interval{op.start, op.end});
    if (!is_new) {
      found->second.start = std::min(found->second.start, op.start);
      found->second.end = std::max(found->second.end, op.end);
    }
  }

  const Interval* find(MeasuredKind kind, int at, int microbatch = 0) const {
    const auto found = times_.find({kind, at, microbatch});
    return found == times_.end() ? nullptr : &found->second;
  }

  // When a transfer could start (both sides were posted) and when it had arrived.
  std::optional<Interval> transfer_time(const Vertex& v) const {
    const bool forward = v.op == OpKind::F;
    const Interval* send =
        find(forward ? MeasuredKind::forward_send : MeasuredKind::backward_send, v.stage, v.microbatch);
    const Interval* receive = find(forward ? MeasuredKind::forward_receive : MeasuredKind::backward_receive,
                                   v.stage + (forward ? 1 : -1), v.microbatch);
    if (send == nullptr && receive == nullptr) return std::nullopt;
    if (send == nullptr || receive == nullptr) return send == nullptr ? *receive : *send;
    return Interval{std::max(send->start, receive->start), receive->end};
  }

  // The union over the ranks that take part.
  std::optional<Interval> collective_time(const Collective& collective) const {
    MeasuredKind kind = MeasuredKind::gradient_scatter;
    switch (collective.kind) {
      case CollectiveKind::parameter_gather: kind = MeasuredKind::parameter_gather; break;
      case CollectiveKind::tied_embedding: kind = MeasuredKind::embedding_reduce; break;
      case CollectiveKind::global_norm: kind = MeasuredKind::clip; break;
      case CollectiveKind::gradient_reduce:
      case CollectiveKind::replica_reduce: break;
    }
    std::optional<Interval> out;
    const auto join = [&](const Interval* each) {
      if (each == nullptr) return;
      if (!out) out = *each;
      out->start = std::max(out->start, each->start);
      out->end = std::max(out->end, each->end);
    };
    if (kind == MeasuredKind::clip) {
      for (const int rank : collective.ranks) join(find(kind, rank));
    } else if (kind == MeasuredKind::embedding_reduce) {
      join(find(kind, 0));
      join(find(kind, run_.stages() - 1));
    } else {
      join(find(kind, collective.stage));
    }
    return out;
  }

  // The optimizer of a rank with several stages is drawn as the first of their steps.
  std::optional<Interval> optimizer_time(int rank) {
    if (!stepped_.emplace(rank, true).second) return std::nullopt;
    const Interval* time = find(MeasuredKind::optimizer, rank);
    return time == nullptr ? std::nullopt : std::optional(*time);
  }

  std::optional<Interval> measured(VertexId v) {
    const Vertex& vertex = (*out_.graph)[v];
    switch (vertex.kind) {
      case VertexKind::transfer: return transfer_time(vertex);
      case VertexKind::collective: return collective_time(out_.graph->collective(vertex));
      case VertexKind::optimizer: return optimizer_time(out_.graph->rank_of(v));
      default: break;
    }
    constexpr std::array<MeasuredKind, 4> kKinds = {MeasuredKind::forward, MeasuredKind::backward,
                                                    MeasuredKind::input_gradient, MeasuredKind::weight_gradient};
    return *find(kKinds[to_size(static_cast<int>(vertex.op))], vertex.stage, vertex.microbatch);
  }

  void time_vertices() {
    const OpGraph& graph = *out_.graph;
    Timeline& timeline = out_.timeline;
    timeline.start.resize(graph.size());
    timeline.end.resize(graph.size());
    timeline.lane_latency.assign(graph.lanes().size(), Duration::zero());
    const Duration zero = std::min_element(times_.begin(), times_.end(), [](const auto& a, const auto& b) {
                            return a.second.start < b.second.start;
                          })->second.start;
    for (VertexId v = 0; v < graph.size(); ++v) {
      Duration ready{};
      for (const VertexId need : graph.needs(v)) ready = std::max(ready, timeline.end[need]);
      const std::optional<Interval> time = measured(v);
      const Duration start = time ? time->start - zero : ready;
      timeline.start[v] = std::max(start, ready);
      timeline.end[v] = time ? timeline.start[v] + (time->end - time->start) : ready;
      if (time && (graph[v].kind == VertexKind::transfer || graph[v].kind == VertexKind::collective)) {
        // What communication had to wait for shortens it: it ended when the receivers had it.
        timeline.end[v] = std::max(time->end - zero, timeline.start[v]);
      } else {
        out_.moved = std::max(out_.moved, timeline.start[v] - start);
      }
    }
  }

  const MeasuredRun& run_;
  DrawnStep out_;
  std::map<Key, Interval> times_;
  std::map<int, bool> stepped_;  // ranks whose optimizer has been drawn
  std::array<bool, kNumMeasuredKinds> has_{};
};

}  // namespace

DrawnStep drawn_step(const MeasuredRun& run, int step, int replica) {
  try {
    return StepDrawer(run, step, replica).draw();
  } catch (const ScheduleError& error) {
    throw InputError(fmt::format("step {}: {}", run.steps[to_size(step)], error.what()));
  }
}

int usual_step(const MeasuredRun& run) {
  std::vector<Duration> times(run.steps.size(), Duration::zero());
  for (const MeasuredOp& op : run.ops) times[to_size(op.step)] = std::max(times[to_size(op.step)], op.end);
  return static_cast<int>(std::find(times.begin(), times.end(), lower_median(times)) - times.begin());
}

}  // namespace sluice::traces
