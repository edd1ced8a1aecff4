#include "sim/planner/order_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/to_size.h"

namespace sluice::sim {
namespace {

// Moves the element at `from` to `to`.
void shift_element(std::vector<std::int32_t>& order, std::size_t from, std::size_t to) {
  const auto source = order.begin() + static_cast<std::ptrdiff_t>(from);
  const auto target = order.begin() + static_cast<std::ptrdiff_t>(to);
  if (to < from) std::rotate(target, source, source + 1);
  if (to > from) std::rotate(source, source + 1, target + 1);
}

}  // namespace

OrderSearch::OrderSearch(const PlacedProblem& problem, const OpTable& table, const std::vector<std::int64_t>& tails,
                         Orders start, unsigned seed)
    : problem_(problem), table_(table), times_(problem, table, tails), random_(seed), orders_(std::move(start)) {
  makespan_ = times_.run(orders_);
  best_ = orders_;
  best_makespan_ = makespan_;
  double sum = 0;
  for (const SliceOpTimes& of : problem.times) {
    const Duration split = of.input_gradient + of.weight_gradient;
    sum += static_cast<double>((of.forward + split).count());
    joins_ = joins_ || (problem.may_split && problem.may_fuse && of.backward < split);
  }
  mean_ = std::max(1.0, sum / (3.0 * static_cast<double>(problem.times.size())));
  update_path();
}

std::int64_t OrderSearch::pick(std::int64_t below) {
  // Uses 32 random bits; the bias is negligible for a search.
  return static_cast<std::int64_t>(((random_() >> 32U) * static_cast<std::uint64_t>(below)) >> 32U);
}

void OrderSearch::update_path() {
  path_.clear();
  times_.critical_path(orders_, path_);
}

OrderSearch::Move OrderSearch::propose() {
  Move move;
  if (pick(8) != 0) {
    const std::size_t at = to_size(pick(std::ssize(path_)));
    const OrderTimes::Step& step = path_[at];
    move.rank = to_size(step.rank);
    const auto size = std::ssize(orders_[move.rank]);
    std::int64_t distance = 1;
    while (distance < 16 && pick(2) == 0) ++distance;
    if (pick(4) != 0) {
      // Only a move across an end of its block, the ops of the path that follow each other on the rank, can shorten the
      // path.
      std::size_t first = at;
      while (path_[first].follows) ++first;
      std::size_t last = at;
      while (last > 0 && path_[last - 1].follows) --last;
      const bool at_first = pick(2) == 0;
      const std::int64_t end = path_[at_first ? first : last].index;
      const std::int64_t inside = at_first ? std::min<std::int64_t>(end + distance, path_[last].index)
                                           : std::max<std::int64_t>(end - distance, path_[first].index);
      if (inside != end) {
        const bool leaves = pick(2) == 0;
        move.from = to_size(leaves ? inside : end);
        move.to = to_size(leaves ? end : inside);
        return move;
      }
    }
    // Moves an op of the path before its predecessors on the rank, or its predecessor after it.
    if (pick(2) == 0) {
      move.from = to_size(step.index);
      move.to = to_size(std::max<std::int64_t>(0, step.index - distance));
    } else {
      move.from = to_size(std::max<std::int64_t>(0, step.index - 1));
      move.to = to_size(std::min<std::int64_t>(size - 1, step.index - 1 + distance));
    }
    return move;
  }
  move.rank = to_size(pick(table_.ranks));
  const auto size = std::ssize(orders_[move.rank]);
  if (size == 0) return move;
  move.from = to_size(pick(size));
  std::int64_t distance = 1;
  while (distance < 64 && pick(4) != 0) ++distance;
  const auto target = static_cast<std::int64_t>(move.from) + (pick(2) == 0 ? distance : -distance);
  move.to = to_size(std::clamp<std::int64_t>(target, 0, size - 1));
  return move;
}

bool OrderSearch::shift(const Move& move) {
  auto& order = orders_[move.rank];
  if (move.from == move.to) return false;
  const std::int32_t op = order[move.from];
  if (move.from > move.to) {
    for (std::size_t i = move.to; i < move.from; ++i) {
      if (table_.ordered(order[i], op)) return false;
    }
  } else {
    for (std::size_t i = move.from + 1; i <= move.to; ++i) {
      if (table_.ordered(op, order[i])) return false;
    }
  }
  shift_element(order, move.from, move.to);
  if (problem_.limit[move.rank] >= kNoLimit) return true;
  std::int64_t held = 0;
  const std::size_t end = std::max(move.from, move.to);
  for (std::size_t i = 0; i <= end; ++i) {
    const OpTable::Row& row = table_.rows[order[i]];
    if (held + row.takes > problem_.limit[move.rank]) {
      shift_element(order, move.to, move.from);
      return false;
    }
    held += row.keeps;
  }
  return true;
}

// Joins an I and its W to a B at the place of the I, or splits a B, if the makespan is at most `most`.
bool OrderSearch::join_or_split(std::int64_t most) {
  const std::size_t rank = to_size(pick(table_.ranks));
  auto& order = orders_[rank];
  if (order.empty()) return false;
  const std::size_t place = to_size(pick(std::ssize(order)));
  const std::int32_t op = order[place];
  const OpKind kind = table_.kind(op);
  if (kind != OpKind::B && kind != OpKind::I) return false;
  const auto as = [&](OpKind other) {
    return table_.id(other, table_.stage(op), table_.microbatch(op), table_.slice(op));
  };
  const std::vector<std::int32_t> before = order;
  if (kind == OpKind::B) {
    order[place] = as(OpKind::I);
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(place) + 1, as(OpKind::W));
  } else {
    order[place] = as(OpKind::B);
    order.erase(std::find(order.begin(), order.end(), as(OpKind::W)));
  }
  std::int64_t held = 0;
  bool fits = true;
  for (const std::int32_t each : order) {
    fits = fits && held + table_.rows[each].takes <= problem_.limit[rank];
    held += table_.rows[each].keeps;
  }
  const std::int64_t makespan = fits ? times_.run(orders_, most) : kNever;
  if (makespan == kNever) {
    order = before;
    return false;
  }
  makespan_ = makespan;
  return true;
}

void OrderSearch::anneal(std::int64_t steps, double warmth, std::int64_t goal, const std::function<bool()>& stop) {
  for (std::int64_t step = 0; step < steps && best_makespan_ > goal; ++step) {
    if (step % 64 == 63 && stop()) break;
    const double left = 1.0 - static_cast<double>(step) / static_cast<double>(steps);
    const double heat = warmth * mean_ * left * left;
    // Metropolis rule; drawing first allows an evaluation to end early.
    const double draw = (static_cast<double>(random_() >> 11U) + 1) * 0x1p-53;
    const std::int64_t most = makespan_ + static_cast<std::int64_t>(-std::log(draw) * heat);
    bool moved = false;
    if (joins_ && pick(6) == 0) {
      moved = join_or_split(most);
    } else {
      const Move move = propose();
      if (!shift(move)) continue;
      const std::int64_t makespan = times_.run(orders_, most);
      if (makespan == kNever) {
        shift_element(orders_[move.rank], move.to, move.from);
      } else {
        makespan_ = makespan;
        moved = true;
      }
    }
    if (!moved) continue;
    update_path();
    if (makespan_ >= best_makespan_) continue;
    best_makespan_ = makespan_;
    best_ = orders_;
  }
  orders_ = best_;
  makespan_ = times_.run(orders_);
  update_path();
}

}  // namespace sluice::sim
