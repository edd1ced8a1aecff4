#include "model/schedule/forward_only.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "model/errors.h"

namespace sluice::model {
namespace {

bool is_forward(const Op& op) { return op.kind == OpKind::F; }

void set_forward_only(ScheduleParts& parts) {
  for (MicrobatchShape& shape : parts.shapes) shape.forward_only = true;
}

// Keeps what passes the results of forwards on, before the forward that it preceded or the next one.
void keep_forward_communication(const std::vector<Op>& order, std::vector<Communication>& list) {
  std::erase_if(list, [](const Communication& moved) {
    return !of_forward(moved.kind) || (!is_send(moved.kind) && !is_receive(moved.kind));
  });
  for (Communication& moved : list) {
    moved.before = static_cast<std::uint32_t>(std::count_if(order.begin(), order.begin() + moved.before, is_forward));
  }
}

}  // namespace

void mark_forward_only(ScheduleParts& parts) {
  const auto forwards = [](const std::vector<Op>& order) {
    return std::all_of(order.begin(), order.end(), is_forward);
  };
  if (std::all_of(parts.orders.begin(), parts.orders.end(), forwards)) set_forward_only(parts);
}

Schedule without_backward(const Schedule& schedule) {
  if (schedule.weight_policy() != WeightPolicy::flush) {
    throw ScheduleError(schedule.family() + ": forward-only work needs a family with a flush");
  }
  refuse_vocabulary(schedule, "forward-only work is not modeled");
  ScheduleParts parts = schedule.parts();
  set_forward_only(parts);
  parts.cells.clear();
  parts.communication_cells.clear();
  for (std::size_t rank = 0; rank < parts.orders.size(); ++rank) {
    std::vector<Op>& order = parts.orders[rank];
    if (!parts.communication.empty()) keep_forward_communication(order, parts.communication[rank]);
    std::erase_if(order, [](const Op& op) { return !is_forward(op); });
    for (Op& op : order) op.joined = false;
  }
  return Schedule(std::move(parts));
}

}  // namespace sluice::model
