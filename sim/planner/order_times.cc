#include "sim/planner/order_times.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

OrderTimes::OrderTimes(const PlacedProblem& problem, const OpTable& table, std::vector<std::int64_t> tails)
    : problem_(problem),
      table_(table),
      tails_(std::move(tails)),
      arrived_(at(table.num_slots)),
      end_(table.rows.size()),
      index_(table.rows.size()),
      maker_(at(table.num_slots), -1),
      clock_(at(table.ranks)),
      lane_free_(at(table.num_lanes)),
      next_(at(table.ranks)),
      waiting_(at(table.ranks)) {
  if (tails_.empty()) tails_.assign(table.rows.size(), 0);
  runnable_.reserve(at(table.ranks) + 1);
}

std::int64_t OrderTimes::run(const Orders& orders, std::int64_t most) {
  ++runs_;
  std::fill(arrived_.begin(), arrived_.end(), -1);
  arrived_[kAvailable] = 0;
  std::fill(clock_.begin(), clock_.end(), 0);
  std::fill(lane_free_.begin(), lane_free_.end(), 0);
  std::fill(next_.begin(), next_.end(), 0);
  std::fill(waiting_.begin(), waiting_.end(), -1);
  runnable_.clear();
  for (int rank = table_.ranks - 1; rank >= 0; --rank) runnable_.push_back(rank);
  while (!runnable_.empty()) {
    const std::int32_t rank = runnable_.back();
    runnable_.pop_back();
    const std::vector<std::int32_t>& order = orders[at(rank)];
    const std::size_t size = order.size();
    std::int64_t clock = clock_[at(rank)];
    std::size_t position = at(next_[at(rank)]);
    for (; position < size; ++position) {
      const std::int32_t op = order[position];
      const OpTable::Row& row = table_.rows[at(op)];
      const std::int64_t there = arrived_[at(row.need)];
      if (there < 0) {
        waiting_[at(rank)] = row.need;
        break;
      }
      const std::int64_t end = std::max(clock, there) + row.duration;
      if (end + tails_[at(op)] > most) return kNever;
      end_[at(op)] = end;
      index_[at(op)] = static_cast<std::int32_t>(position);
      clock = end;
      if (row.makes == kNoReader) continue;
      std::int64_t arrival = end;
      if (row.lane >= 0) {
        const std::int64_t left = std::max(end, lane_free_[at(row.lane)]) + row.send;
        lane_free_[at(row.lane)] = left;
        arrival = left + row.hop;
        if (problem_.blocking) clock = arrival;
      }
      arrived_[at(row.makes)] = arrival;
      maker_[at(row.makes)] = op;
      if (waiting_[at(row.reader)] == row.makes) {
        waiting_[at(row.reader)] = -1;
        runnable_.push_back(row.reader);
      }
    }
    clock_[at(rank)] = clock;
    next_[at(rank)] = static_cast<std::int32_t>(position);
  }
  std::int64_t makespan = 0;
  for (int rank = 0; rank < table_.ranks; ++rank) {
    const auto& order = orders[at(rank)];
    if (at(next_[at(rank)]) < order.size()) return kNever;
    const std::int64_t end = order.empty() ? 0 : end_[at(order.back())];
    makespan = std::max(makespan, end + problem_.after[at(rank)].count());
  }
  return makespan <= most ? makespan : kNever;
}

void OrderTimes::critical_path(const Orders& orders, std::vector<Step>& path) const {
  Step step;
  std::int64_t latest = -1;
  for (int rank = 0; rank < table_.ranks; ++rank) {
    const auto& order = orders[at(rank)];
    if (order.empty()) continue;
    const std::int64_t end = end_[at(order.back())] + problem_.after[at(rank)].count();
    if (end > latest) {
      latest = end;
      step = {.rank = rank, .index = static_cast<int>(order.size()) - 1};
    }
  }
  while (true) {
    const auto& order = orders[at(step.rank)];
    const std::int32_t op = order[at(step.index)];
    const std::int64_t begin = start(op);
    step.follows =
        step.index > 0 && (end_[at(order[at(step.index - 1)])] == begin || table_.rows[at(op)].need == kAvailable ||
                           arrived_[at(table_.rows[at(op)].need)] < begin);
    path.push_back(step);
    if (begin == 0) return;
    if (step.follows) {
      --step.index;
      continue;
    }
    const std::int32_t from = maker_[at(table_.rows[at(op)].need)];
    if (from < 0) return;
    step = {.rank = table_.rank_of[at(table_.stage(from))], .index = index_[at(from)]};
  }
}

}  // namespace sluice
