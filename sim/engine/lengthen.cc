#include "sim/engine/lengthen.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "model/to_size.h"

namespace sluice::sim {
namespace {

std::optional<Schedule> of_family(const Schedule& schedule, int batches) {
  for (const Family& family : all_families()) {
    if (!family.asynchronous || family.name != schedule.family() || schedule.has_communication()) continue;
    FamilyParams params{.ranks = schedule.num_ranks(),
                        .chunks = schedule.num_chunks(),
                        .microbatches = schedule.num_microbatches(),
                        .batches = schedule.num_batches(),
                        .shape = schedule.shape(0)};
    const ScheduleParts built = make_parts(family, params);
    const ScheduleParts& parts = schedule.parts();
    if (built.orders != parts.orders || built.routes != parts.routes || !parts.shape_of.empty()) return std::nullopt;
    params.batches = batches;
    return make_schedule(family, params);
  }
  return std::nullopt;
}

// Repeats `times` times, for each `unit` microbatches later, the ops of a list from `begin` to `end`.
class Repetition {
 public:
  Repetition(std::int64_t begin, std::int64_t end, int unit, int times)
      : begin_(begin), end_(end), unit_(unit), times_(times) {}

  // Applies it to a list of ops or communication. `position` of an entry is that of the op it is or stands before.
  template <typename Entry, typename Position>
  std::vector<Entry> of(const std::vector<Entry>& list, Position position) const {
    std::vector<Entry> out;
    const auto append = [&](std::int64_t from, std::int64_t to, int later) {
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (position(i) < from || position(i) >= to) continue;
        Entry entry = list[i];
        entry.microbatch += later * unit_;
        if constexpr (requires { entry.before; }) entry.before += static_cast<std::uint32_t>(later * (end_ - begin_));
        out.push_back(entry);
      }
    };
    append(0, begin_, 0);
    for (int i = 0; i <= times_; ++i) append(begin_, end_, i);
    append(end_, std::numeric_limits<std::int64_t>::max(), times_);
    return out;
  }

 private:
  std::int64_t begin_;
  std::int64_t end_;
  int unit_;
  int times_;
};

// Position in the middle of a list at which `block` ops are followed by the same for microbatches `unit` later.
std::optional<std::int64_t> repeating(const std::vector<Op>& list, std::int64_t block, int unit) {
  std::int64_t begin = (std::ssize(list) - 2 * block) / 2;
  if (begin > 0 && list[begin - 1].joined) --begin;
  for (std::int64_t i = begin; i < begin + block; ++i) {
    Op later = list[i];
    later.microbatch += unit;
    if (later != list[i + block]) return std::nullopt;
  }
  return begin;
}

// The entries by microbatch for `total` of them, if they repeat every `unit`.
template <typename T>
bool repeat(std::vector<T>& by_microbatch, int unit, int total) {
  if (by_microbatch.empty()) return true;
  for (std::size_t i = to_size(unit); i < by_microbatch.size(); ++i) {
    if (by_microbatch[i] != by_microbatch[i - to_size(unit)]) return false;
  }
  while (std::ssize(by_microbatch) < total)
    by_microbatch.push_back(by_microbatch[by_microbatch.size() - to_size(unit)]);
  return true;
}

std::optional<Schedule> repeated(const Schedule& schedule, int batches, int unit) try {
  ScheduleParts parts = schedule.parts();
  const int total = schedule.total_microbatches();
  const int step = unit / std::gcd(unit, schedule.num_microbatches());  // batches
  const int more = (batches - schedule.num_batches() + step - 1) / step * step;
  parts.num_batches += more;
  if (!repeat(parts.route_of, unit, total + more * schedule.num_microbatches()) ||
      !repeat(parts.shape_of, unit, total + more * schedule.num_microbatches())) {
    return std::nullopt;
  }
  for (std::size_t rank = 0; rank < parts.orders.size(); ++rank) {
    std::vector<Op>& list = parts.orders[rank];
    const std::int64_t block = std::ssize(list) * unit / total;
    if (std::ssize(list) * unit % total != 0) return std::nullopt;
    const auto begin = repeating(list, block, unit);
    if (!begin) return std::nullopt;
    const Repetition repetition(*begin, *begin + block, unit, more * schedule.num_microbatches() / unit);
    list = repetition.of(list, [](std::size_t i) { return static_cast<std::int64_t>(i); });
    if (parts.communication.empty()) continue;
    auto& moved = parts.communication[rank];
    moved = repetition.of(moved, [&](std::size_t i) { return std::int64_t{moved[i].before}; });
  }
  parts.cells.clear();
  parts.communication_cells.clear();
  return Schedule(std::move(parts));
} catch (const ScheduleError&) {
  return std::nullopt;  // the lists repeat in their middle only
}

}  // namespace

std::optional<Schedule> lengthened(const Schedule& schedule, int batches) {
  constexpr double kMostOps = 5e6;
  if (static_cast<double>(batches) / schedule.num_batches() * static_cast<double>(schedule.num_ops()) > kMostOps) {
    return std::nullopt;
  }
  if (auto out = of_family(schedule, batches)) return out;
  for (int unit = 1; unit <= schedule.total_microbatches() / 2; ++unit) {
    if (auto out = repeated(schedule, batches, unit)) return out;
  }
  return std::nullopt;
}

}  // namespace sluice::sim
