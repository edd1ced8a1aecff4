#include "model/graph/deadlock.h"

#include <algorithm>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/iteration_macros.hpp>
#include <boost/graph/strong_components.hpp>
#include <deque>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace sluice::model {
namespace {

using WaitGraph = boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, boost::no_property,
                                                     boost::no_property, std::uint32_t, std::uint32_t>;

// The ops that did not run. The vertices of its graph are n ops and n prefixes of ranks' lists: an op leads to those
// whose results it reads and to the prefix before it; prefix n + i to op i, its last, and to the next shorter one.
class Blocked {
 public:
  Blocked(const Schedule& schedule, const std::vector<std::size_t>& next) : schedule_(schedule) {
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      const auto ops = schedule.ops(rank);
      for (std::size_t i = next[rank]; i < ops.size(); ++i) {
        index_[key(ops[i].kind, ops[i].stage, ops[i].microbatch, ops[i].slice)] = size();
        places_.push_back({rank, i, i == next[rank]});
      }
    }
    std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;  // by source
    for (std::uint32_t v = 0; v < size(); ++v) {
      add_needs(v, op(v), edges);
      if (op(v).joined) add_needs(v, op(v + 1), edges);
      if (!places_[v].first) edges.emplace_back(v, size() + v - 1);
    }
    for (std::uint32_t v = 0; v < size(); ++v) {
      edges.emplace_back(size() + v, v);
      if (!places_[v].first) edges.emplace_back(size() + v, size() + v - 1);
    }
    graph_ = WaitGraph(boost::edges_are_sorted, edges.begin(), edges.end(), 2 * size());
    component_.resize(num_vertices(graph_));
    component_size_.resize(strong_components(
        graph_, boost::make_iterator_property_map(component_.begin(), get(boost::vertex_index, graph_))));
    for (const std::uint32_t component : component_) ++component_size_[component];
  }

  std::uint32_t size() const { return static_cast<std::uint32_t>(places_.size()); }

  // Whether a cycle begins at op `v`. A joint block is represented by its first op.
  bool in_cycle(std::uint32_t v) const {
    return !second_of_block(v) && (component_size_[component_[v]] > 1 || edge(v, v, graph_).second);
  }

  // The shortest cycle of at most `limit` ops from `start`, without the prefixes; empty if there is none.
  std::vector<std::uint32_t> cycle_through(std::uint32_t start, std::uint32_t limit) const {
    constexpr std::uint32_t kUnreached = std::numeric_limits<std::uint32_t>::max();
    std::vector<std::uint32_t> distance(num_vertices(graph_), kUnreached);  // in ops
    std::vector<std::uint32_t> from(num_vertices(graph_));
    std::deque<std::uint32_t> queue = {start};
    distance[start] = 0;
    while (!queue.empty()) {
      const std::uint32_t v = queue.front();
      queue.pop_front();
      if (edge(v, start, graph_).second) {
        std::vector<std::uint32_t> cycle;
        for (std::uint32_t at = v; at != start; at = from[at]) {
          if (at < size()) cycle.push_back(at);
        }
        cycle.push_back(start);
        return {cycle.rbegin(), cycle.rend()};
      }
      BGL_FORALL_ADJ(v, to, graph_, WaitGraph) {
        const bool is_op = to < size();
        const std::uint32_t reached = distance[v] + (is_op ? 1 : 0);
        if (component_[to] != component_[start] || reached >= distance[to] || reached >= limit) continue;
        distance[to] = reached;
        from[to] = v;
        queue.insert(is_op ? queue.end() : queue.begin(), to);
      }
    }
    return {};
  }

  std::string text(std::uint32_t v) const {
    std::string text = to_string(op(v), schedule_.sliced());
    if (op(v).joined) text += "+" + to_string(op(v + 1), schedule_.sliced());
    if (schedule_.read_from_table()) text += " at " + schedule_.place(places_[v].rank, places_[v].position);
    return text;
  }

 private:
  struct Place {
    int rank = 0;
    std::size_t position = 0;  // in the rank's list
    bool first = false;        // of the rank's ops here
  };

  using Key = std::tuple<OpKind, int, int, int>;
  // A B is found as the I that it includes.
  static Key key(OpKind kind, int stage, int microbatch, int slice) {
    return {kind == OpKind::B ? OpKind::I : kind, stage, microbatch, slice};
  }

  bool second_of_block(std::uint32_t v) const { return !places_[v].first && op(v - 1).joined; }
  const Op& op(std::uint32_t v) const { return schedule_.ops(places_[v].rank)[places_[v].position]; }

  void add_needs(std::uint32_t v, const Op& op, std::vector<std::pair<std::uint32_t, std::uint32_t>>& edges) const {
    const auto add = [&](OpKind kind, int stage, int slice) {
      const auto found = index_.find(key(kind, stage, op.microbatch, slice));
      if (found == index_.end()) return;
      edges.emplace_back(v, second_of_block(found->second) ? found->second - 1 : found->second);
    };
    const int last = schedule_.num_stages() - 1;
    const auto add_all = [&](OpKind kind) {
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank) add(kind, schedule_.stages_of(rank).front(), 0);
    };
    if (op.kind == OpKind::S) {
      add(OpKind::F, last, 0);
    } else if (op.kind == OpKind::T) {
      add_all(OpKind::S);
    } else if (op.kind == OpKind::F) {
      if (op.stage > 0) add(OpKind::F, op.stage - 1, op.slice);
      if (op.slice > 0) add(OpKind::F, op.stage, op.slice - 1);
    } else if (op.kind == OpKind::W) {
      add(OpKind::I, op.stage, op.slice);
    } else {
      add(OpKind::F, op.stage, op.slice);
      if (op.stage == last && schedule_.vocabulary_barriers() > 0) {
        add_all(schedule_.vocabulary_barriers() == 2 ? OpKind::T : OpKind::S);
      }
      if (op.stage + 1 < schedule_.num_stages()) add(OpKind::I, op.stage + 1, op.slice);
      if (op.slice + 1 < schedule_.num_slices(op.microbatch)) add(OpKind::I, op.stage, op.slice + 1);
    }
  }

  const Schedule& schedule_;
  std::vector<Place> places_;
  std::map<Key, std::uint32_t> index_;
  WaitGraph graph_;
  std::vector<std::uint32_t> component_;  // by vertex: its strongly connected component
  std::vector<std::uint32_t> component_size_;
};

}  // namespace

std::string deadlock_cycle(const Schedule& schedule, const std::vector<std::size_t>& next) {
  const Blocked blocked(schedule, next);
  constexpr std::uint32_t kExactLimit = 4000;
  std::vector<std::uint32_t> best;
  for (std::uint32_t start = 0; start < blocked.size(); ++start) {
    if (!blocked.in_cycle(start)) continue;
    const std::size_t limit = best.empty() ? blocked.size() : best.size() - 1;
    auto cycle = blocked.cycle_through(start, static_cast<std::uint32_t>(limit));
    if (!cycle.empty()) best = std::move(cycle);
    if (best.size() <= 2 || blocked.size() > kExactLimit) break;
  }
  std::string text;
  for (const std::uint32_t v : best) text += blocked.text(v) + " -> ";
  return best.empty() ? text : text + blocked.text(best.front());
}

}  // namespace sluice::model
