#include "tests/support/oracle.h"

#include <algorithm>
#include <array>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/dag_shortest_paths.hpp>
#include <limits>
#include <map>
#include <tuple>

namespace sluice::test {
namespace {

// A vertex per block (one op, or the two of a joint block), and vertex 0 for the beginning. An edge's weight is the
// least time between the starts of its ends.
using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property,
                                    boost::property<boost::edge_weight_t, std::int64_t>>;

class WaitsFor {
 public:
  WaitsFor(const Schedule& schedule, const OracleCosts& costs) : schedule_(schedule), hop_(costs.hop) {
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      const auto ops = schedule.ops(rank);
      for (std::size_t i = 0; i < ops.size(); ++i) {
        const bool second = i > 0 && ops[i - 1].joined;
        if (second) {
          length_.back() = costs.joint ? costs.joint(ops[i - 1], ops[i]) : length_.back() + costs.op(ops[i]);
        } else {
          length_.push_back(costs.op(ops[i]));
        }
        block_[key(ops[i].kind, ops[i])] = length_.size() - 1;
      }
    }
    graph_ = Graph(length_.size());
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      std::size_t before = 0;
      for (const Op& op : schedule.ops(rank)) {
        if (block_of(op) != before) add_edge(before, block_of(op), length_[before], graph_);
        before = block_of(op);
        add_needs(op);
      }
    }
  }

  const Graph& graph() const { return graph_; }
  std::size_t block_of(const Op& op) const { return block_.at(key(op.kind, op)); }
  std::int64_t length_of(const Op& op) const { return length_[block_of(op)]; }

 private:
  using Key = std::tuple<OpKind, int, int, int>;
  // A B is found as the I that it computes, too.
  static Key key(OpKind kind, const Op& op) {
    return {kind == OpKind::B ? OpKind::I : kind, op.stage, op.microbatch, op.slice};
  }

  void add_needs(const Op& op) {
    const auto need = [&](OpKind kind, int stage, int slice) {
      const Op other{.microbatch = op.microbatch,
                     .stage = static_cast<std::int16_t>(stage),
                     .slice = static_cast<std::int16_t>(slice)};
      const std::size_t from = block_.at(key(kind, other));
      const bool same_rank = schedule_.rank_of(stage, op.microbatch) == schedule_.rank_of(op.stage, op.microbatch);
      add_edge(from, block_of(op), length_[from] + (same_rank ? 0 : hop_), graph_);
    };
    if (op.kind == OpKind::F) {
      if (op.stage > 0) need(OpKind::F, op.stage - 1, op.slice);
      if (op.slice > 0) need(OpKind::F, op.stage, op.slice - 1);
    } else if (op.kind == OpKind::W) {
      need(OpKind::I, op.stage, op.slice);
    } else {
      need(OpKind::F, op.stage, op.slice);
      if (op.stage + 1 < schedule_.num_stages()) need(OpKind::I, op.stage + 1, op.slice);
      if (op.slice + 1 < schedule_.num_slices(op.microbatch)) need(OpKind::I, op.stage, op.slice + 1);
    }
  }

  const Schedule& schedule_;
  std::int64_t hop_;
  std::map<Key, std::size_t> block_;
  std::vector<std::int64_t> length_ = {0};
  Graph graph_;
};

}  // namespace

OracleCosts uniform(std::int64_t f, std::int64_t b, std::int64_t w, std::int64_t hop) {
  const std::array<std::int64_t, 4> cost = {f, b + w, b, w};
  return {.op = [cost](const Op& op) { return cost[static_cast<std::size_t>(op.kind)]; }, .joint = {}, .hop = hop};
}

OracleTimes longest_path(const Schedule& schedule, const OracleCosts& costs) {
  const WaitsFor blocks(schedule, costs);
  std::vector<std::int64_t> start_of(num_vertices(blocks.graph()));
  OracleTimes times;
  try {
    dag_shortest_paths(blocks.graph(), 0,
                       boost::distance_map(start_of.data())
                           .distance_compare(std::greater<>())
                           .distance_inf(std::numeric_limits<std::int64_t>::min()));
  } catch (const boost::not_a_dag&) {
    times.deadlock = true;
    return times;
  }
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    auto& start = times.start.emplace_back();
    auto& end = times.end.emplace_back();
    for (const Op& op : schedule.ops(rank)) {
      start.push_back(start_of[blocks.block_of(op)]);
      end.push_back(start.back() + blocks.length_of(op));
    }
  }
  return times;
}

std::int64_t OracleTimes::makespan() const {
  std::int64_t last = 0;
  for (const auto& rank : end) last = std::max(last, rank.back());
  return last;
}

std::int64_t OracleTimes::span(int rank) const { return end[rank].back() - start[rank].front(); }

std::int64_t OracleTimes::largest_span() const {
  std::int64_t largest = 0;
  for (std::size_t rank = 0; rank < end.size(); ++rank) largest = std::max(largest, span(static_cast<int>(rank)));
  return largest;
}

std::int64_t OracleTimes::busy(int rank) const {
  const auto& starts = start[rank];
  const auto& stops = end[rank];
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (i == 0 || starts[i] != starts[i - 1]) sum += stops[i] - starts[i];
  }
  return sum;
}

int peak_in_flight(const Schedule& schedule, int rank, OpKind released_by) {
  int held = 0;
  int peak = 0;
  for (const Op& op : schedule.ops(rank)) {
    held += op.kind == OpKind::F ? 1 : 0;
    peak = std::max(peak, held);
    held -= op.kind == OpKind::B || op.kind == released_by ? 1 : 0;
  }
  return peak;
}

}  // namespace sluice::test
