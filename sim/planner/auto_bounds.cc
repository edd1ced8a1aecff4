#include "sim/planner/auto_bounds.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "model/to_size.h"
#include "sim/planner/rank_bound.h"

namespace sluice::sim {
namespace {

// Up to this size, sets of ancestors sharpen the heads and tails. Above it only edges are used.
constexpr std::size_t kMostNodesForSets = 8192;

// An op of the relaxation. The order of the indices is topological.
struct Node {
  int rank = 0;
  std::int64_t duration = 0;
  std::int64_t blocks = 0;  // time after its end during which the rank is blocked by sending
  std::int64_t after = 0;   // earliest start
};
struct Edge {
  std::int32_t other = 0;
  std::int64_t delay = 0;  // from the end of the one to the start of the other
};
struct Relaxation {
  std::vector<Node> nodes;
  std::vector<std::vector<Edge>> before;
};

// Earliest starts, from paths and from the ops that a rank must have run before.
std::vector<std::int64_t> heads_of(const Relaxation& graph, int num_ranks) {
  const std::size_t n = graph.nodes.size();
  std::vector<std::int64_t> head(n, 0);
  const bool sets = n <= kMostNodesForSets;
  const std::size_t words = (n + 63) / 64;
  std::vector<std::uint64_t> ancestors(sets ? n * words : 0);
  std::vector<std::vector<std::size_t>> by_head(to_size(num_ranks));  // nodes so far of each rank, by their heads
  for (std::size_t v = 0; v < n; ++v) {
    const Node& node = graph.nodes[v];
    head[v] = node.after;
    for (const Edge& edge : graph.before[v]) {
      const std::size_t u = to_size(edge.other);
      head[v] = std::max(head[v], head[u] + graph.nodes[u].duration + edge.delay);
      if (!sets) continue;
      for (std::size_t w = 0; w < words; ++w) ancestors[v * words + w] |= ancestors[u * words + w];
      ancestors[v * words + u / 64] |= std::uint64_t{1} << (u % 64);
    }
    if (!sets) continue;
    auto& others = by_head[node.rank];
    std::int64_t clock = 0;
    for (const std::size_t u : others) {
      if ((ancestors[v * words + u / 64] >> (u % 64) & 1U) == 0) continue;
      clock = std::max(clock, head[u]) + graph.nodes[u].duration + graph.nodes[u].blocks;
    }
    head[v] = std::max(head[v], clock);
    others.insert(std::upper_bound(others.begin(), others.end(), v,
                                   [&](std::size_t a, std::size_t b) { return head[a] < head[b]; }),
                  v);
  }
  return head;
}

class Bounding {
 public:
  Bounding(const PlacedProblem& problem, const OpTable& table) : problem_(problem), table_(table) { make_relaxation(); }

  AutoBounds run(std::int64_t most_orders) const {
    const std::size_t n = relaxed_.nodes.size();
    const std::vector<std::int64_t> head = heads_of(relaxed_, table_.ranks);
    Relaxation reversed;
    reversed.nodes.resize(n);
    reversed.before.resize(n);
    for (std::size_t v = 0; v < n; ++v) {
      Node& node = reversed.nodes[n - 1 - v] = relaxed_.nodes[v];
      node.after = problem_.after[node.rank].count();
      node.blocks = 0;  // would be before the op in the reversed graph: omitted
      for (const Edge& edge : relaxed_.before[v]) {
        reversed.before[n - 1 - to_size(edge.other)].push_back({static_cast<std::int32_t>(n - 1 - v), edge.delay});
      }
    }
    const std::vector<std::int64_t> back = heads_of(reversed, table_.ranks);
    AutoBounds bounds;
    std::vector<std::vector<HeadTail>> machines(to_size(table_.ranks));
    for (std::size_t v = 0; v < n; ++v) {
      const Node& node = relaxed_.nodes[v];
      const std::int64_t tail = back[n - 1 - v];
      bounds.makespan = std::max(bounds.makespan, head[v] + node.duration + tail);
      const std::int64_t blocks = std::min(node.blocks, tail);
      machines[node.rank].push_back({head[v], node.duration + blocks, tail - blocks});
    }
    add_blocked(head, back, machines);
    for (auto& machine : machines) bounds.makespan = std::max(bounds.makespan, preemptive_bound(std::move(machine)));
    if (most_orders > 0) {
      std::vector<int> limited;
      for (int rank = 0; rank < table_.ranks; ++rank) {
        if (problem_.limit[rank] < kNoLimit) limited.push_back(rank);
      }
      bounds.makespan = idle_bound(
          limited, table_.ranks, [&](const std::vector<int>& ranks) { return ranks_problem(ranks, head, back); },
          bounds.makespan, most_orders);
    }
    bounds.tail.resize(table_.rows.size());
    for (std::int32_t op = 0; op < std::ssize(table_.rows); ++op) {
      // A B ends when its W would; what depends on its I alone is omitted.
      const OpKind kind = table_.kind(op) == OpKind::B ? OpKind::W : table_.kind(op);
      const std::size_t v = node(kind, table_.stage(op), table_.slice(op), table_.microbatch(op));
      bounds.tail[op] = back[n - 1 - v];
    }
    return bounds;
  }

 private:
  // Adds the time during which a rank is blocked because it sends a gradient. Whether it follows the I or, for a B, the
  // part that counts as the W, it does not start before the end of the I, and the op that reads the gradient follows
  // it. (Not with joint blocks, for which one such wait may cover two gradients.)
  void add_blocked(const std::vector<std::int64_t>& head, const std::vector<std::int64_t>& back,
                   std::vector<std::vector<HeadTail>>& machines) const {
    if (!problem_.blocking || problem_.may_join || problem_.joint_share < 1) return;
    const std::size_t n = relaxed_.nodes.size();
    for (int stage = 1; stage < table_.stages; ++stage) {
      for (int slice = 0; slice < table_.slices; ++slice) {
        const std::int64_t wait = hop(OpKind::I, stage, slice);
        for (int j = 0; j < table_.microbatches; ++j) {
          const std::size_t v = node(OpKind::I, stage, slice, j);
          if (wait == 0 || relaxed_.nodes[v].blocks > 0) continue;
          const std::size_t reader = node(OpKind::I, stage - 1, slice, j);
          machines[table_.rank_of[stage]].push_back(
              {head[v] + relaxed_.nodes[v].duration, wait, relaxed_.nodes[reader].duration + back[n - 1 - reader]});
        }
      }
    }
  }

  // Some ranks, their delays through the others, and the reverse. A B counts as its I and W, which hold no
  // more than the B if the gradients held until W are left out.
  std::pair<RankProblem, RankProblem> ranks_problem(const std::vector<int>& ranks,
                                                    const std::vector<std::int64_t>& head,
                                                    const std::vector<std::int64_t>& back) const {
    RankProblem out{.microbatches = table_.microbatches, .limit = {}, .groups = {}};
    for (const int rank : ranks) out.limit.push_back(problem_.limit[rank]);
    const auto machine_of = [&](int stage) {
      return static_cast<int>(std::find(ranks.begin(), ranks.end(), table_.rank_of[stage]) - ranks.begin());
    };
    std::vector<std::vector<std::int64_t>> tails;
    struct Chain {
      int behind = -1;
      std::int64_t delay = 0;
    };
    std::vector<Chain> chains(to_size(table_.slices));
    const auto add_group = [&](OpKind kind, int stage, int slice, int after) {
      const OpTable::Row& row = table_.rows[table_.id(kind, stage, 0, slice)];
      const std::int64_t spared =
          problem_.may_fuse ? problem_.bytes[problem_.slice_index(stage, slice)].gradients_to_weight_gradient : 0;
      RankProblem::Group group{.machine = machine_of(stage),
                               .duration = relaxed_.nodes[node(kind, stage, slice, 0)].duration,
                               .takes = row.takes - (kind == OpKind::I ? spared : 0),
                               .keeps = row.keeps + (kind == OpKind::F   ? 0
                                                     : kind == OpKind::W ? spared
                                                                         : -spared)};
      if (after >= 0) group.after.push_back(after);
      if (kind != OpKind::W) {
        Chain& chain = chains[slice];
        group.behind = chain.behind;
        group.delay = chain.delay;
        chain = {static_cast<int>(out.groups.size()), hop(kind, stage, slice)};
      }
      auto& tail = tails.emplace_back();
      for (int j = 0; j < table_.microbatches; ++j) {
        const std::size_t v = node(kind, stage, slice, j);
        group.heads.push_back(head[v]);
        tail.push_back(back[relaxed_.nodes.size() - 1 - v]);
      }
      out.groups.push_back(std::move(group));
      return static_cast<int>(out.groups.size()) - 1;
    };
    const auto pass = [&](OpKind kind, int stage, int slice) {
      chains[slice].delay += relaxed_.nodes[node(kind, stage, slice, 0)].duration + hop(kind, stage, slice);
    };
    for (int stage = 0; stage < table_.stages; ++stage) {
      for (int slice = 0, before = -1; slice < table_.slices; ++slice) {
        if (machine_of(stage) < std::ssize(ranks)) {
          before = add_group(OpKind::F, stage, slice, before);
        } else {
          pass(OpKind::F, stage, slice);
        }
      }
    }
    for (int stage = table_.stages - 1; stage >= 0; --stage) {
      for (int slice = table_.slices - 1, before = -1; slice >= 0; --slice) {
        if (machine_of(stage) < std::ssize(ranks)) {
          before = add_group(OpKind::I, stage, slice, before);
          add_group(OpKind::W, stage, slice, before);
        } else {
          pass(OpKind::I, stage, slice);
        }
      }
    }
    RankProblem reversed = out.reversed(tails);
    return {std::move(out), std::move(reversed)};
  }

  // Nodes by microbatch; then forwards up the stages, gradients down with their Ws.
  std::size_t node(OpKind kind, int stage, int slice, int j) const {
    const int cells = table_.stages * table_.slices;
    const int up = stage * table_.slices + slice;
    const int within = kind == OpKind::F   ? up
                       : kind == OpKind::W ? 2 * cells + (cells - 1 - up)
                                           : cells + (cells - 1 - up);
    return to_size(std::int64_t{j} * 3 * cells + within);
  }

  void edge(std::size_t from, std::size_t to, std::int64_t delay) {
    relaxed_.before[to].push_back({static_cast<std::int32_t>(from), delay});
  }

  std::int64_t shortened(Duration time) const {
    return problem_.joint_share >= 1
               ? time.count()
               : static_cast<std::int64_t>(static_cast<double>(time.count()) * problem_.joint_share);
  }

  // Minimal time from the end of an op until its reader has its result.
  std::int64_t hop(OpKind kind, int stage, int slice) const {
    const OpTable::Row& row = table_.rows[table_.id(kind, stage, 0, slice)];
    return row.makes == kNoReader ? 0 : row.send + row.hop;
  }

  void make_relaxation() {
    const int m = table_.microbatches;
    relaxed_.nodes.resize(std::int64_t{m} * 3 * table_.stages * table_.slices);
    relaxed_.before.resize(relaxed_.nodes.size());
    for (int stage = 0; stage < table_.stages; ++stage) {
      for (int slice = 0; slice < table_.slices; ++slice) {
        for (int j = 0; j < m; ++j) add(stage, slice, j);
        add_limits(stage, slice);
      }
    }
  }

  void add(int stage, int slice, int j) {
    const SliceOpTimes& times = problem_.times[problem_.slice_index(stage, slice)];
    const std::size_t forward = node(OpKind::F, stage, slice, j);
    const std::size_t gradient = node(OpKind::I, stage, slice, j);
    const std::size_t weight = node(OpKind::W, stage, slice, j);
    const std::int64_t split = shortened(times.input_gradient) + shortened(times.weight_gradient);
    const std::int64_t fused = shortened(times.backward);
    std::int64_t first = problem_.may_split ? shortened(times.input_gradient) : fused;
    std::int64_t both = problem_.may_split ? split : fused;
    if (problem_.may_split && problem_.may_fuse) {
      first = std::min(first, fused);
      both = std::min(both, fused);
    }
    if (!problem_.may_split) first = both;
    const int rank = table_.rank_of[stage];
    const auto set = [&](std::size_t v, std::int64_t duration, OpKind kind) {
      relaxed_.nodes[v] = {.rank = rank, .duration = duration};
      // With joint blocks it is not known which op sends when.
      if (problem_.blocking && problem_.joint_share >= 1 && kind != OpKind::W &&
          !(kind == OpKind::I && problem_.may_fuse)) {
        relaxed_.nodes[v].blocks = hop(kind, stage, slice);
      }
    };
    set(forward, shortened(times.forward), OpKind::F);
    set(gradient, first, OpKind::I);
    set(weight, both - first, OpKind::W);
    for (const std::size_t v : {forward, gradient, weight}) {
      if (j > 0) edge(v - to_size(std::int64_t{3} * table_.stages * table_.slices), v, 0);
    }
    edge(forward, gradient, 0);
    edge(gradient, weight, 0);
    if (stage > 0) {
      edge(node(OpKind::F, stage - 1, slice, j), forward, hop(OpKind::F, stage - 1, slice));
      edge(gradient, node(OpKind::I, stage - 1, slice, j), hop(OpKind::I, stage, slice));
    }
    if (slice > 0) {
      edge(node(OpKind::F, stage, slice - 1, j), forward, 0);
      edge(gradient, node(OpKind::I, stage, slice - 1, j), 0);
    }
  }

  // Between F and I of a slice, the rank also holds all earlier slices and all its earlier stages: their F come before
  // and their I after. Between F and W it holds what W releases.
  void add_limits(int stage, int slice) {
    const int rank = table_.rank_of[stage];
    const std::int64_t limit = problem_.limit[rank];
    if (limit >= kNoLimit) return;
    std::int64_t together = 0;
    for (int s = 0; s <= stage; ++s) {
      if (table_.rank_of[s] != rank) continue;
      for (int i = 0; i <= slice; ++i) {
        const SliceBytes& bytes = problem_.bytes[problem_.slice_index(s, i)];
        together += bytes.activations_to_input_gradient + bytes.activations_to_weight_gradient + bytes.keys_values;
      }
    }
    const SliceBytes& own = problem_.bytes[problem_.slice_index(stage, slice)];
    // The newest forward also holds its workspace and what I releases.
    const std::int64_t briefly = own.forward_workspace + own.activations_to_input_gradient + own.keys_values;
    add_window(stage, slice, OpKind::I, together, limit - own.forward_workspace);
    add_window(stage, slice, OpKind::W, own.activations_to_weight_gradient, limit - briefly);
  }

  void add_window(int stage, int slice, OpKind release, std::int64_t each, std::int64_t limit) {
    if (each <= 0) return;
    const std::int64_t most = std::max<std::int64_t>(1, limit / each);
    for (int j = 0; j + most < table_.microbatches; ++j) {
      edge(node(release, stage, slice, j), node(OpKind::F, stage, slice, j + static_cast<int>(most)), 0);
    }
  }

  const PlacedProblem& problem_;
  const OpTable& table_;
  Relaxation relaxed_;
};

}  // namespace

std::int64_t preemptive_bound(std::vector<HeadTail> ops) {
  std::sort(ops.begin(), ops.end(), [](const HeadTail& a, const HeadTail& b) { return a.head < b.head; });
  // Released unfinished ops; the one with the longest tail runs.
  std::priority_queue<std::pair<std::int64_t, std::int64_t>> waiting;  // tail, remaining time
  std::int64_t clock = 0;
  std::int64_t bound = 0;
  std::size_t next = 0;
  while (next < ops.size() || !waiting.empty()) {
    if (waiting.empty()) clock = std::max(clock, ops[next].head);
    for (; next < ops.size() && ops[next].head <= clock; ++next) waiting.emplace(ops[next].tail, ops[next].duration);
    auto [tail, left] = waiting.top();
    waiting.pop();
    const std::int64_t until = next < ops.size() ? std::min(clock + left, ops[next].head) : clock + left;
    left -= until - clock;
    clock = until;
    if (left > 0) {
      waiting.emplace(tail, left);
    } else {
      bound = std::max(bound, clock + tail);
    }
  }
  return bound;
}

AutoBounds auto_bounds(const PlacedProblem& problem, const OpTable& table, std::int64_t most_orders) {
  return Bounding(problem, table).run(most_orders);
}

}  // namespace sluice::sim
