#include "model/schedule/with_communication.h"

#include <utility>

#include "model/errors.h"

namespace sluice::model {
namespace {

class Placing {
 public:
  explicit Placing(const Schedule& schedule)
      : schedule_(schedule),
        cells_(static_cast<std::size_t>(schedule.num_units()) * static_cast<std::size_t>(schedule.num_stages())),
        forward_there_(cells_, 0),
        gradient_there_(cells_, 0),
        next_(static_cast<std::size_t>(schedule.num_ranks()), 0),
        placed_(static_cast<std::size_t>(schedule.num_ranks())) {}

  std::vector<std::vector<Communication>> run() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank) progress |= step(rank);
    }
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      if (next_[rank] < schedule_.ops(rank).size()) {
        throw ScheduleError("its ops deadlock: sends and receives cannot be placed");
      }
    }
    return std::move(placed_);
  }

 private:
  std::size_t cell(const Op& op, int stage) const {
    return static_cast<std::size_t>(stage * schedule_.num_units() + schedule_.first_unit(op.microbatch) + op.slice);
  }

  // Whether the inputs of `op` from other stages were computed (on this rank) or sent to it.
  bool ready(const Op& op) const {
    switch (op.kind) {
      case OpKind::F: return op.stage == 0 || forward_there_[cell(op, op.stage - 1)] != 0;
      case OpKind::B:
      case OpKind::I: return op.stage + 1 == schedule_.num_stages() || gradient_there_[cell(op, op.stage + 1)] != 0;
      case OpKind::W: return true;
    }
    return true;
  }

  bool step(int rank) {
    const auto list = schedule_.ops(rank);
    std::size_t& position = next_[rank];
    if (position == list.size()) return false;
    const Op& op = list[position];
    const Op* partner = op.joined ? &list[position + 1] : nullptr;
    if (!ready(op) || (partner != nullptr && !ready(*partner))) return false;
    position += partner == nullptr ? 1 : 2;
    hand_on(rank, op);
    if (partner != nullptr) hand_on(rank, *partner);
    return true;
  }

  void hand_on(int rank, const Op& op) {
    if (op.kind == OpKind::W) return;
    const bool forward = op.kind == OpKind::F;
    (forward ? forward_there_ : gradient_there_)[cell(op, op.stage)] = 1;
    const int other = op.stage + (forward ? 1 : -1);
    if (other < 0 || other >= schedule_.num_stages()) return;
    const int peer = schedule_.rank_of(other, op.microbatch);
    if (peer == rank) return;
    place(rank, op, op.stage, forward ? CommunicationKind::send_forward : CommunicationKind::send_backward);
    place(peer, op, other, forward ? CommunicationKind::recv_forward : CommunicationKind::recv_backward);
  }

  void place(int rank, const Op& op, int stage, CommunicationKind kind) {
    placed_[rank].push_back({.microbatch = op.microbatch,
                             .stage = static_cast<std::int16_t>(stage),
                             .slice = op.slice,
                             .before = static_cast<std::uint32_t>(next_[rank]),
                             .kind = kind});
  }

  const Schedule& schedule_;
  std::size_t cells_;
  std::vector<char> forward_there_;   // by cell: computed, and sent to where it is needed
  std::vector<char> gradient_there_;  // the same
  std::vector<std::size_t> next_;     // by rank: position in its list
  std::vector<std::vector<Communication>> placed_;
};

}  // namespace

Schedule with_communication(const Schedule& schedule) {
  ScheduleParts parts = schedule.parts();
  parts.communication = Placing(schedule).run();
  parts.cells.clear();
  parts.communication_cells.clear();
  return Schedule(std::move(parts));
}

Schedule with_merged_backwards(const Schedule& schedule) {
  ScheduleParts parts = schedule.parts();
  parts.communication.clear();
  parts.cells.clear();
  parts.communication_cells.clear();
  for (std::vector<Op>& order : parts.orders) {
    std::vector<Op> merged;
    merged.reserve(order.size());
    for (const Op& op : order) {
      Op* last = merged.empty() ? nullptr : &merged.back();
      const bool in_block = merged.size() > 1 && merged[merged.size() - 2].joined;
      const bool pair = last != nullptr && !in_block && last->kind == OpKind::I && op.kind == OpKind::W &&
                        last->stage == op.stage && last->microbatch == op.microbatch && last->slice == op.slice;
      if (pair) {
        last->kind = OpKind::B;
      } else {
        merged.push_back(op);
      }
    }
    order = std::move(merged);
  }
  return Schedule(std::move(parts));
}

}  // namespace sluice::model
