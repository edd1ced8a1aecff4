#include "model/graph/deadlock.h"

#include <array>
#include <deque>
#include <limits>
#include <map>
#include <tuple>

namespace sluice::model {
namespace {

// The ops that did not run, and what each waits for.
class Blocked {
 public:
  struct Place {
    int rank = 0;
    int position = 0;  // in the rank's list
  };

  Blocked(const Schedule& schedule, const std::vector<std::size_t>& next) : schedule_(schedule) {
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      first_.push_back(static_cast<int>(next[rank]));
      base_.push_back(static_cast<int>(places_.size()));
      const auto ops = schedule.ops(rank);
      for (int i = first_.back(); i < static_cast<int>(ops.size()); ++i) {
        const Op& op = ops[i];
        index_[key(op.kind == OpKind::B ? OpKind::I : op.kind, op.stage, op.microbatch, op.slice)] =
            static_cast<int>(places_.size());
        places_.push_back({rank, i});
      }
    }
  }

  int size() const { return static_cast<int>(places_.size()); }
  const Op& op(int node) const {
    const Place& place = places_[node];
    return schedule_.ops(place.rank)[place.position];
  }
  std::string place(int node) const {
    const Place& at = places_[node];
    return schedule_.place(at.rank, static_cast<std::size_t>(at.position));
  }
  int head(int node) const { return base_[places_[node].rank]; }
  bool first_on_rank(int node) const { return head(node) == node; }

  // Ops left that `node` needs as data; both halves of a joint block wait together.
  std::vector<int> needs(int node) const {
    std::vector<int> out;
    add_needs(op(node), node, out);
    if (op(node).joined) add_needs(op(node + 1), node, out);
    return out;
  }
  // The node that stands for it in the order: the first half of its block.
  int block(int node) const { return !first_on_rank(node) && op(node - 1).joined ? node - 1 : node; }

 private:
  using Key = std::tuple<OpKind, int, int, int>;
  static Key key(OpKind kind, int stage, int microbatch, int slice) { return {kind, stage, microbatch, slice}; }

  void add_needs(const Op& op, int node, std::vector<int>& out) const {
    const auto add = [&](OpKind kind, int stage, int slice) {
      const auto found = index_.find(key(kind, stage, op.microbatch, slice));
      if (found != index_.end()) out.push_back(block(found->second));
    };
    (void)node;
    if (op.kind == OpKind::F) {
      if (op.stage > 0) add(OpKind::F, op.stage - 1, op.slice);
      if (op.slice > 0) add(OpKind::F, op.stage, op.slice - 1);
    } else if (op.kind == OpKind::W) {
      add(OpKind::I, op.stage, op.slice);
    } else {
      add(OpKind::F, op.stage, op.slice);
      if (op.stage + 1 < schedule_.num_stages()) add(OpKind::I, op.stage + 1, op.slice);
      if (op.slice + 1 < schedule_.num_slices(op.microbatch)) add(OpKind::I, op.stage, op.slice + 1);
    }
  }

  const Schedule& schedule_;
  std::vector<int> first_;
  std::vector<int> base_;
  std::vector<Place> places_;
  std::map<Key, int> index_;
};

// Shortest ring through `start`, or empty. Nodes 0..n-1 name an op; n..2n-1 stand between ops of a list: reaching
// n+i means waiting for something at or before position i, which costs nothing until an op is named.
std::vector<int> ring_through(const Blocked& blocked, int start, int limit) {
  const int n = blocked.size();
  std::vector<int> distance(static_cast<std::size_t>(2 * n), std::numeric_limits<int>::max());
  std::vector<int> from(static_cast<std::size_t>(2 * n), -1);
  std::deque<int> queue;
  const auto reach = [&](int node, int cost, int source) {
    if (cost >= distance[node] || cost > limit) return;
    distance[node] = cost;
    from[node] = source;
    if (cost == (source < 0 ? 0 : distance[source])) {
      queue.push_front(node);
    } else {
      queue.push_back(node);
    }
  };
  const auto expand = [&](int node, int cost) {
    if (node >= n) {
      const int op = node - n;
      if (op != start) reach(op, cost + 1, node);
      if (!blocked.first_on_rank(op)) reach(node - 1, cost, node);
    } else {
      for (const int need : blocked.needs(node)) {
        if (need != start) reach(need, cost + 1, node);
      }
      if (!blocked.first_on_rank(node)) reach(n + node - 1, cost, node);
    }
  };
  const auto closes = [&](int node) {  // does `node` wait for start directly?
    if (node >= n) return node - n == start;
    for (const int need : blocked.needs(node)) {
      if (need == start) return true;
    }
    return false;
  };
  distance[start] = 0;
  expand(start, 0);
  while (!queue.empty()) {
    const int node = queue.front();
    queue.pop_front();
    if (closes(node)) {
      std::vector<int> ring;
      for (int at = node; at >= 0 && at != start; at = from[at]) {
        if (at < n) ring.push_back(at);
      }
      ring.push_back(start);
      return {ring.rbegin(), ring.rend()};
    }
    expand(node, distance[node]);
  }
  if (closes(start)) return {start};
  return {};
}

std::vector<int> ring_through_heads(const Blocked& blocked, int any) {
  std::vector<int> path;
  std::vector<char> visited(static_cast<std::size_t>(blocked.size()), 0);
  int node = blocked.head(any);
  while (visited[node] == 0) {
    visited[node] = 1;
    path.push_back(node);
    const auto needs = blocked.needs(node);
    if (needs.empty()) return {};
    const int wanted = needs.front();
    if (blocked.head(wanted) != wanted && visited[static_cast<std::size_t>(wanted)] == 0) {
      visited[static_cast<std::size_t>(wanted)] = 1;
      path.push_back(wanted);
    }
    node = blocked.head(wanted);
  }
  return {std::find(path.begin(), path.end(), node), path.end()};
}

}  // namespace

std::string deadlock_ring(const Schedule& schedule, const std::vector<std::size_t>& next) {
  const Blocked blocked(schedule, next);
  std::vector<int> best;
  constexpr int kExactLimit = 4000;
  if (blocked.size() <= kExactLimit) {
    int limit = std::numeric_limits<int>::max() - 1;
    for (int start = 0; start < blocked.size(); ++start) {
      if (blocked.block(start) != start) continue;
      std::vector<int> ring = ring_through(blocked, start, limit);
      if (!ring.empty() && (best.empty() || ring.size() < best.size())) {
        best = std::move(ring);
        limit = static_cast<int>(best.size()) - 1;
        if (best.size() <= 2) break;
      }
    }
  } else {
    best = ring_through_heads(blocked, 0);
  }
  std::string text;
  const auto add = [&](int node) {
    text += to_string(blocked.op(node), schedule.sliced());
    if (blocked.op(node).joined) text += "+" + to_string(blocked.op(node + 1), schedule.sliced());
    if (schedule.read_from_table()) text += " at " + blocked.place(node);
  };
  for (const int node : best) {
    add(node);
    text += " -> ";
  }
  if (!best.empty()) add(best.front());
  return text;
}

}  // namespace sluice::model
