#include "tests/support/oracle.h"

#include <algorithm>
#include <array>

namespace sluice::test {
namespace {

constexpr std::int64_t kNotYet = -1;

// The end of every op that has run; kNotYet for the others.
class Ends {
 public:
  explicit Ends(const Schedule& schedule)
      : units_(schedule.total_microbatches() * schedule.max_slices()),
        slices_(schedule.max_slices()),
        end_(static_cast<std::size_t>(6 * schedule.num_stages() * units_), kNotYet) {}
  std::int64_t& at(OpKind kind, int stage, int mb, int slice) {
    const int kind_and_stage = static_cast<int>(kind) + 6 * stage;
    return end_[kind_and_stage * units_ + mb * slices_ + slice];
  }
  // The end of the input gradient, which a B computes too.
  std::int64_t gradient(int stage, int mb, int slice) {
    return std::max(at(OpKind::B, stage, mb, slice), at(OpKind::I, stage, mb, slice));
  }

 private:
  int units_;
  int slices_;
  std::vector<std::int64_t> end_;
};

// The time at which all inputs of `op` have arrived, or kNotYet.
std::int64_t ready(const Schedule& schedule, Ends& ends, const Op& op, std::int64_t hop) {
  const int s = op.stage, m = op.microbatch, i = op.slice;
  std::int64_t when = 0;
  bool all = true;
  const auto need = [&](std::int64_t end, std::int64_t latency) {
    all = all && end != kNotYet;
    when = std::max(when, end + latency);
  };
  const auto hop_from = [&](int stage) { return schedule.rank_of(stage, m) == schedule.rank_of(s, m) ? 0 : hop; };
  // Between the rank of the last stage and the others: one transfer to it, or, for what all need, two.
  const int last = schedule.num_stages() - 1;
  const auto all_passes = [&](OpKind kind, bool returned) {
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      const int of = schedule.stages_of(rank).front();
      const std::int64_t there = rank == schedule.rank_of(last, m) ? 0 : hop;
      need(ends.at(kind, of, m, 0), there + (returned ? hop_from(last) : 0));
    }
  };
  if (op.kind == OpKind::S) {
    need(ends.at(OpKind::F, last, m, i), hop_from(last));
  } else if (op.kind == OpKind::T) {
    all_passes(OpKind::S, true);
  } else if (op.kind == OpKind::F) {
    if (s > 0) need(ends.at(OpKind::F, s - 1, m, i), hop_from(s - 1));
    if (i > 0) need(ends.at(OpKind::F, s, m, i - 1), 0);
  } else if (op.kind == OpKind::W) {
    need(ends.at(OpKind::I, s, m, i), 0);
  } else {
    need(ends.at(OpKind::F, s, m, i), 0);
    if (s == last && schedule.vocabulary_barriers() == 1) all_passes(OpKind::S, false);
    if (s == last && schedule.vocabulary_barriers() == 2) all_passes(OpKind::T, false);
    if (s + 1 < schedule.num_stages()) need(ends.gradient(s + 1, m, i), hop_from(s + 1));
    if (i + 1 < schedule.num_slices(m)) need(ends.gradient(s, m, i + 1), 0);
  }
  return all ? when : kNotYet;
}

}  // namespace

OracleCosts uniform(std::int64_t f, std::int64_t b, std::int64_t w, std::int64_t hop) {
  const std::array<std::int64_t, 6> cost = {f, b + w, b, w, f, f};
  return {.op = [cost](const Op& op) { return cost[static_cast<std::size_t>(op.kind)]; }, .joint = {}, .hop = hop};
}

OracleTimes longest_path(const Schedule& schedule, const OracleCosts& costs) {
  OracleTimes times;
  times.start.resize(schedule.num_ranks());
  times.end.resize(schedule.num_ranks());
  Ends ends(schedule);
  std::int64_t left = schedule.num_ops();
  for (bool progress = true; progress && left > 0;) {
    progress = false;
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      const auto ops = schedule.ops(rank);
      auto& start = times.start[rank];
      auto& end = times.end[rank];
      while (end.size() < ops.size()) {
        const auto block = ops.subspan(end.size(), ops[end.size()].joined ? 2 : 1);
        std::int64_t begin = end.empty() ? 0 : end.back();
        bool all = true;
        for (const Op& op : block) {
          const std::int64_t when = ready(schedule, ends, op, costs.hop);
          all = all && when != kNotYet;
          begin = std::max(begin, when);
        }
        if (!all) break;
        std::int64_t length = 0;
        for (const Op& op : block) length += costs.op(op);
        if (block.size() == 2 && costs.joint) length = costs.joint(block[0], block[1]);
        for (const Op& op : block) {
          ends.at(op.kind, op.stage, op.microbatch, op.slice) = begin + length;
          start.push_back(begin);
          end.push_back(begin + length);
          --left;
        }
        progress = true;
      }
    }
  }
  times.deadlock = left > 0;
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
