#include "tests/support/oracle.h"

#include <algorithm>
#include <array>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/dag_shortest_paths.hpp>
#include <limits>
#include <utility>

namespace sluice::test {
namespace {

// A vertex per block (one op, or the two of a joint block), and vertex 0 for the beginning. An edge has the
// least time between the starts of its ends.
struct Wait {
  std::int64_t time = 0;
};
using Graph = boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, Wait>;

class WaitsFor {
 public:
  WaitsFor(const Schedule& schedule, const OracleCosts& costs) : schedule_(schedule), hop_(costs.hop) {
    block_.resize(static_cast<std::size_t>(3 * schedule.num_stages() * schedule.num_units()));
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      const auto ops = schedule.ops(rank);
      for (std::size_t i = 0; i < ops.size(); ++i) {
        const bool second = i > 0 && ops[i - 1].joined;
        if (second) {
          length_.back() = costs.joint ? costs.joint(ops[i - 1], ops[i]) : length_.back() + costs.op(ops[i]);
        } else {
          length_.push_back(costs.op(ops[i]));
        }
        block_[key(ops[i].kind, ops[i].stage, ops[i].microbatch, ops[i].slice)] = length_.size() - 1;
      }
    }
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      std::size_t before = 0;
      for (const Op& op : schedule.ops(rank)) {
        if (block_of(op) != before) add_edge(before, block_of(op), length_[before]);
        before = block_of(op);
        add_needs(op);
      }
    }
    graph_ = Graph(boost::edges_are_unsorted, edges_.begin(), edges_.end(), waits_.begin(), length_.size());
  }

  const Graph& graph() const { return graph_; }
  std::size_t block_of(const Op& op) const { return block_[key(op.kind, op.stage, op.microbatch, op.slice)]; }
  std::int64_t length_of(const Op& op) const { return length_[block_of(op)]; }

 private:
  // A B is found as the I that it includes.
  std::int64_t key(OpKind kind, int stage, int microbatch, int slice) const {
    const int row = kind == OpKind::F ? 0 : kind == OpKind::W ? 1 : 2;
    return (row * schedule_.num_stages() + stage) * schedule_.num_units() + schedule_.first_unit(microbatch) + slice;
  }

  void add_edge(std::size_t from, std::size_t to, std::int64_t time) {
    edges_.emplace_back(from, to);
    waits_.push_back({time});
  }

  void add_needs(const Op& op) {
    const auto need = [&](OpKind kind, int stage, int slice) {
      const std::size_t from = block_[key(kind, stage, op.microbatch, slice)];
      const bool same_rank = schedule_.rank_of(stage, op.microbatch) == schedule_.rank_of(op.stage, op.microbatch);
      add_edge(from, block_of(op), length_[from] + (same_rank ? 0 : hop_));
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
  std::vector<std::size_t> block_;  // by key
  std::vector<std::int64_t> length_ = {0};
  std::vector<std::pair<std::size_t, std::size_t>> edges_;
  std::vector<Wait> waits_;  // by edge
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
                       boost::weight_map(get(&Wait::time, blocks.graph()))
                           .distance_map(start_of.data())
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
