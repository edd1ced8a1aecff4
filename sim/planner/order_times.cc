#include "sim/planner/order_times.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "model/to_size.h"

namespace sluice::sim {
namespace {

// Position of the part of `length` ops that contains each of the rank's groups equally often and starts nearest to
// `from`; -1 if there is none.
std::int64_t repeatable_part(const OpTable& table, const std::vector<std::int32_t>& order, const OrderTimes& times,
                             std::int64_t length, int period, std::int64_t from) {
  std::vector<int> count(to_size(std::int64_t{3} * table.stages * table.slices), 0);
  std::int64_t even = 0;  // groups with `period` ops in the window
  const std::int64_t groups = length / period;
  const auto change = [&](std::int32_t op, int by) {
    int& of = count[table.group(op)];
    even -= of == period ? 1 : 0;
    of += by;
    even += of == period ? 1 : 0;
  };
  std::int64_t best = -1;
  std::int64_t best_distance = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t i = 0; i < std::ssize(order); ++i) {
    change(order[i], 1);
    if (i >= length) change(order[i - length], -1);
    const std::int64_t begin = i + 1 - length;
    if (begin < 0 || even != groups) continue;
    const std::int64_t distance = std::abs(times.start(order[begin]) - from);
    if (distance < best_distance) {
      best = begin;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace

Orders stretched(const OpTable& few, const OpTable& many, const Orders& orders, const OrderTimes& times, int period,
                 std::int64_t from) {
  const int more = many.microbatches - few.microbatches;
  if (more <= 0 || more % period != 0) return {};
  Orders out(orders.size());
  for (std::size_t rank = 0; rank < orders.size(); ++rank) {
    const auto& order = orders[rank];
    // The number of ops per microbatch is constant only if all backwards are split, or none.
    if (std::ssize(order) % few.microbatches != 0) return {};
    const std::int64_t length = std::ssize(order) / few.microbatches * period;
    const std::int64_t begin = repeatable_part(few, order, times, length, period, from);
    if (begin < 0) return {};
    const auto append = [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const std::int32_t op = order[i];
        out[rank].push_back(many.id(few.kind(op), few.stage(op), 0, few.slice(op)));
      }
    };
    append(0, begin);
    for (int i = 0; i < more / period; ++i) append(begin, begin + length);
    append(begin, std::ssize(order));
  }
  return renamed(many, std::move(out));
}

OrderTimes::OrderTimes(const PlacedProblem& problem, const OpTable& table, std::vector<std::int64_t> tails)
    : problem_(problem),
      table_(table),
      tails_(std::move(tails)),
      arrived_(to_size(table.num_slots)),
      end_(table.rows.size()),
      index_(table.rows.size()),
      maker_(to_size(table.num_slots), -1),
      clock_(to_size(table.ranks)),
      lane_free_(to_size(table.num_lanes)),
      next_(to_size(table.ranks)),
      waiting_(to_size(table.ranks)) {
  if (tails_.empty()) tails_.assign(table.rows.size(), 0);
  runnable_.reserve(to_size(table.ranks) + 1);
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
    const std::vector<std::int32_t>& order = orders[rank];
    const std::size_t size = order.size();
    std::int64_t clock = clock_[rank];
    std::size_t position = to_size(next_[rank]);
    for (; position < size; ++position) {
      const std::int32_t op = order[position];
      const OpTable::Row& row = table_.rows[op];
      const std::int64_t there = arrived_[row.need];
      if (there < 0) {
        waiting_[rank] = row.need;
        break;
      }
      const std::int64_t end = std::max(clock, there) + row.duration;
      if (end + tails_[op] > most) return kNever;
      end_[op] = end;
      index_[op] = static_cast<std::int32_t>(position);
      clock = end;
      if (row.makes == kNoReader) continue;
      std::int64_t arrival = end;
      if (row.lane >= 0) {
        const std::int64_t left = std::max(end, lane_free_[row.lane]) + row.send;
        lane_free_[row.lane] = left;
        arrival = left + row.hop;
        if (problem_.blocking) clock = arrival;
      }
      arrived_[row.makes] = arrival;
      maker_[row.makes] = op;
      if (waiting_[row.reader] == row.makes) {
        waiting_[row.reader] = -1;
        runnable_.push_back(row.reader);
      }
    }
    clock_[rank] = clock;
    next_[rank] = static_cast<std::int32_t>(position);
  }
  std::int64_t makespan = 0;
  for (int rank = 0; rank < table_.ranks; ++rank) {
    const auto& order = orders[rank];
    if (to_size(next_[rank]) < order.size()) return kNever;
    const std::int64_t end = order.empty() ? 0 : end_[order.back()];
    makespan = std::max(makespan, end + problem_.after[rank].count());
  }
  return makespan <= most ? makespan : kNever;
}

void OrderTimes::critical_path(const Orders& orders, std::vector<Step>& path) const {
  Step step;
  std::int64_t latest = -1;
  for (int rank = 0; rank < table_.ranks; ++rank) {
    const auto& order = orders[rank];
    if (order.empty()) continue;
    const std::int64_t end = end_[order.back()] + problem_.after[rank].count();
    if (end > latest) {
      latest = end;
      step = {.rank = rank, .index = static_cast<int>(order.size()) - 1};
    }
  }
  while (true) {
    const auto& order = orders[step.rank];
    const std::int32_t op = order[step.index];
    const std::int64_t begin = start(op);
    // An op at 0 waited for none, even behind ops that take no time.
    step.follows = begin > 0 && step.index > 0 &&
                   (end_[order[step.index - 1]] == begin || table_.rows[op].need == kAvailable ||
                    arrived_[table_.rows[op].need] < begin);
    path.push_back(step);
    if (begin == 0) return;
    if (step.follows) {
      --step.index;
      continue;
    }
    const std::int32_t from = maker_[table_.rows[op].need];
    if (from < 0) return;
    step = {.rank = table_.rank_of[table_.stage(from)], .index = index_[from]};
  }
}

}  // namespace sluice::sim
