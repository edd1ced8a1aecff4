#include "model/timeline/causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "model/to_size.h"

namespace sluice::model {
namespace {

bool same_microbatch(const Vertex& a, const Vertex& b) {
  return a.op == b.op && a.stage == b.stage && a.microbatch == b.microbatch && a.slice != b.slice;
}

// Advances over all compute lanes concurrently, in the order of ids, and visits each idle interval.
template <typename Visit>
class Idle {
 public:
  Idle(const OpGraph& graph, const Timeline& timeline, Visit& visit)
      : graph_(graph), timeline_(timeline), visit_(visit), ranks_(to_size(graph.schedule().num_ranks())) {
    const Schedule& schedule = graph.schedule();
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      const auto list = schedule.ops(rank);
      const auto last = std::find_if(list.rbegin(), list.rend(), [](const Op& op) { return op.kind == OpKind::F; });
      ranks_[rank].forwards_end = list.rend() - last;
      ranks_[rank].ops_left = std::ssize(list);
    }
    for (VertexId v = 0; v < graph.size(); ++v) {
      const Duration end = timeline.end[v];
      makespan_ = std::max(makespan_, end);
      const VertexKind kind = graph[v].kind;
      if (kind == VertexKind::compute || kind == VertexKind::joint) drained_ = std::max(drained_, end);
    }
  }

  void run() {
    for (VertexId v = 0; v < graph_.size(); ++v) {
      const Vertex& vertex = graph_[v];
      if (!on_compute_lane(vertex.kind)) continue;
      Rank& rank = ranks_[vertex.lane];  // compute lanes are numbered by rank
      if (timeline_.start[v] > rank.free) before(v, rank);
      rank.free = timeline_.end[v];
      rank.last = v;
      if (vertex.kind == VertexKind::optimizer) continue;
      rank.seen_backward |= vertex.op != OpKind::F || vertex.kind == VertexKind::joint;
      const std::int64_t ops = vertex.kind == VertexKind::compute ? 1 : vertex.kind == VertexKind::joint ? 2 : 0;
      rank.position += ops;
      rank.ops_left -= ops;
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (makespan_ > ranks_[r].free) after_the_list(static_cast<int>(r), ranks_[r], makespan_, kNoVertex);
    }
  }

 private:
  struct Rank {
    Duration free{};
    VertexId last = kNoVertex;
    std::int64_t position = 0;      // in the list
    std::int64_t forwards_end = 0;  // position after the last F
    std::int64_t ops_left = 0;
    bool seen_backward = false;
  };

  // The lane is idle from rank.free until `v` starts.
  void before(VertexId v, const Rank& rank) {
    const int here = graph_[v].lane;
    const Duration begin = rank.free;
    const Duration end = timeline_.start[v];
    if (rank.ops_left == 0) return after_the_list(here, rank, end, v);
    const LastNeed need = last_need(graph_, timeline_, v);
    if (need.vertex == kNoVertex || need.met <= begin) return visit(here, begin, end, IdleCause::other, v);
    const Duration met = std::min(need.met, end);
    if (graph_[need.vertex].kind == VertexKind::transfer) {
      const VertexId producer = graph_.needs(need.vertex).front();
      const Duration handed_over = std::clamp(timeline_.end[producer], begin, met);
      visit(here, begin, handed_over, of_sender(v, rank), v, producer, graph_.rank_of(producer));
      visit(here, handed_over, met, IdleCause::link, v, need.vertex, graph_.rank_of(need.vertex));
    } else {
      const bool copied = graph_[need.vertex].kind == VertexKind::offload;
      visit(here, begin, met, copied ? IdleCause::host : IdleCause::optimizer, v, need.vertex);
    }
    visit(here, met, end, IdleCause::other, v);
  }

  IdleCause of_sender(VertexId v, const Rank& rank) const {
    const Vertex& vertex = graph_[v];
    if (rank.last != kNoVertex && continues(vertex, graph_[rank.last])) return IdleCause::slice;
    if (!rank.seen_backward) return IdleCause::warm_up;
    return rank.position >= rank.forwards_end ? IdleCause::drain : IdleCause::sender;
  }

  // Whether `next` continues the microbatch that `last` is a slice of.
  bool continues(const Vertex& next, const Vertex& last) const {
    const auto either = [&](const Vertex& op) {
      return same_microbatch(op, last) ||
             (last.kind == VertexKind::joint && same_microbatch(op, graph_.joint_partner(last)));
    };
    return either(next) || (next.kind == VertexKind::joint && either(graph_.joint_partner(next)));
  }

  // After the rank's last op: other ranks still work, then come the steps.
  void after_the_list(int here, const Rank& rank, Duration end, VertexId next) {
    const Duration empty = std::clamp(drained_, rank.free, end);
    visit(here, rank.free, empty, IdleCause::drain, next);
    const LastNeed need = next == kNoVertex ? LastNeed{} : last_need(graph_, timeline_, next);
    const bool collective = need.vertex != kNoVertex && graph_[need.vertex].kind == VertexKind::collective;
    const Duration met = next == kNoVertex ? end : std::clamp(need.met, empty, end);
    visit(here, empty, met, IdleCause::optimizer, next, collective ? need.vertex : kNoVertex);
    visit(here, met, end, IdleCause::other, next);
  }

  void visit(int rank, Duration start, Duration end, IdleCause cause, VertexId next, VertexId waits_for = kNoVertex,
             int from_rank = -1) {
    if (end <= start) return;
    visit_(IdleInterval{start, end, rank, from_rank, next, waits_for, cause});
  }

  const OpGraph& graph_;
  const Timeline& timeline_;
  Visit& visit_;
  std::vector<Rank> ranks_;
  Duration makespan_{};
  Duration drained_{};  // when the last op of any rank ended
};

IdleRoot root_of_link(const OpGraph& graph, VertexId transfer) {
  const Lane& link = graph.lanes()[graph[transfer].lane];
  return {std::min(link.rank, link.peer), std::max(link.rank, link.peer)};
}

}  // namespace

std::string to_string(const IdleRoot& root) {
  return root.peer < 0 ? fmt::format("rank {}", root.rank) : fmt::format("link {}-{}", root.rank, root.peer);
}

std::vector<IdleRoot> roots_of_starts(const OpGraph& graph, const Timeline& timeline,
                                      std::span<const VertexId> same_as) {
  std::vector<IdleRoot> roots(graph.size());
  for (VertexId v = 0; v < graph.size(); ++v) {
    roots[v] = {.rank = graph.rank_of(v)};
    if (graph[v].kind == VertexKind::offload) continue;
    if (!same_as.empty() && same_as[v] != kNoVertex) {
      roots[v] = roots[same_as[v]];
      continue;
    }
    if (graph[v].kind == VertexKind::transfer) {
      roots[v] = roots[graph.needs(v).front()];
      continue;
    }
    Duration free{};  // when its lane was
    for (const VertexId need : graph.needs(v)) {
      if (graph[need].lane == graph[v].lane) free = std::max(free, timeline.end[need]);
    }
    const LastNeed need = last_need(graph, timeline, v);
    if (need.vertex == kNoVertex || need.met <= free) continue;
    roots[v] = roots[need.vertex];
    if (graph[need.vertex].kind != VertexKind::transfer) continue;
    const Duration sent = std::max(timeline.end[graph.needs(need.vertex).front()], free);
    if (need.met - sent > sent - free) roots[v] = root_of_link(graph, need.vertex);
  }
  return roots;
}

std::vector<RootedIdle> idle_roots(const OpGraph& graph, const Timeline& timeline, std::span<const VertexId> same_as) {
  const std::vector<IdleRoot> roots = roots_of_starts(graph, timeline, same_as);
  VertexId last = kNoVertex;
  for (VertexId v = 0; v < graph.size(); ++v) {
    const VertexKind kind = graph[v].kind;
    if (kind != VertexKind::compute && kind != VertexKind::joint) continue;
    if (last == kNoVertex ||
        std::pair(timeline.end[last], graph[v].lane) < std::pair(timeline.end[v], graph[last].lane)) {
      last = v;
    }
  }
  std::vector<RootedIdle> out;
  const auto add = [&](const IdleInterval& interval) {
    if (interval.cause == IdleCause::optimizer || interval.cause == IdleCause::other) return;
    const VertexId for_op = interval.waits_for == kNoVertex ? last : interval.waits_for;
    const IdleRoot root = interval.cause == IdleCause::link ? root_of_link(graph, for_op) : roots[for_op];
    out.push_back({root, interval.end - interval.start, interval.next});
  };
  Idle(graph, timeline, add).run();
  return out;
}

std::vector<RootedIdle> idle_by_root(const OpGraph& graph, const Timeline& timeline) {
  std::map<IdleRoot, Duration> sums;
  for (const RootedIdle& part : idle_roots(graph, timeline)) sums[part.root] += part.idle;
  return by_length(sums);
}

std::vector<RootedIdle> by_length(const std::map<IdleRoot, Duration>& sums) {
  std::vector<RootedIdle> out;
  for (const auto& [root, idle] : sums) out.push_back({.root = root, .idle = idle});
  std::stable_sort(out.begin(), out.end(), [](const RootedIdle& a, const RootedIdle& b) { return a.idle > b.idle; });
  return out;
}

LastNeed last_need(const OpGraph& graph, const Timeline& timeline, VertexId v) {
  LastNeed last{kNoVertex, Duration::min()};
  const auto needs = graph.needs(v);
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const Duration met = graph.is_order(v, i) ? timeline.end[needs[i]] : timeline.arrival(graph, needs[i]);
    if (met > last.met) last = {needs[i], met};
  }
  return last.vertex == kNoVertex ? LastNeed{} : last;
}

std::vector<IdleInterval> idle_intervals(const OpGraph& graph, const Timeline& timeline) {
  std::vector<IdleInterval> intervals;
  const auto keep = [&](const IdleInterval& interval) { intervals.push_back(interval); };
  Idle(graph, timeline, keep).run();
  std::stable_sort(intervals.begin(), intervals.end(),
                   [](const IdleInterval& a, const IdleInterval& b) { return a.rank < b.rank; });
  return intervals;
}

std::vector<IdleByCause> idle_by_cause(const OpGraph& graph, const Timeline& timeline) {
  std::vector<IdleByCause> sums(to_size(graph.schedule().num_ranks()), IdleByCause{});
  const auto add = [&](const IdleInterval& interval) {
    sums[interval.rank][static_cast<std::size_t>(interval.cause)] += interval.end - interval.start;
  };
  Idle(graph, timeline, add).run();
  return sums;
}

}  // namespace sluice::model
