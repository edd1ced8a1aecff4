#include "sim/planner/order_stretch.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

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

}  // namespace sluice::sim
