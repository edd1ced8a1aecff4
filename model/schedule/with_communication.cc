#include "model/schedule/with_communication.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

class Placing {
 public:
  Placing(const Schedule& schedule, bool runtime_actions)
      : schedule_(schedule),
        cells_(static_cast<std::size_t>(schedule.num_units()) * static_cast<std::size_t>(schedule.num_stages())),
        forward_there_(cells_, 0),
        gradient_there_(cells_, 0),
        next_(static_cast<std::size_t>(schedule.num_ranks()), 0),
        placed_(static_cast<std::size_t>(schedule.num_ranks())),
        pauses_(static_cast<std::size_t>(schedule.num_ranks()), 0),
        ops_left_(static_cast<std::size_t>(schedule.num_ranks())) {
    refuse_vocabulary(schedule, "their broadcasts and reductions have no sends and receives");
    if (!runtime_actions) return;
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      ops_left_[rank].assign(schedule.stages_of(rank).size(), 0);
      for (const Op& op : schedule.ops(rank)) ++ops_left_[rank][schedule.chunk_of(rank, op.stage)];
    }
  }

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
      default: return true;
    }
  }

  bool step(int rank) {
    const auto list = schedule_.ops(rank);
    std::size_t& position = next_[rank];
    if (position == list.size()) return false;
    if (pauses_[rank] > 0) return pauses_[rank]-- > 0;
    const Op& op = list[position];
    const Op* partner = op.joined ? &list[position + 1] : nullptr;
    if (!ready(op) || (partner != nullptr && !ready(*partner))) return false;
    position += partner == nullptr ? 1 : 2;
    hand_on(rank, op);
    if (partner != nullptr) hand_on(rank, *partner);
    return true;
  }

  void hand_on(int rank, const Op& op) {
    constexpr int kActionsAfterStage = 2;  // RESHARD, REDUCE_GRAD
    const bool last = !ops_left_[rank].empty() && --ops_left_[rank][schedule_.chunk_of(rank, op.stage)] == 0;
    if (last) pauses_[rank] += kActionsAfterStage;
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
  std::vector<int> pauses_;                 // by rank: rounds that its actions on weights take
  std::vector<std::vector<int>> ops_left_;  // by rank and chunk
};

// The list of a rank with deferred receives.
class Deferring {
 public:
  Deferring(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

  std::vector<Communication> run() {
    const auto list = schedule_.communication(rank_);
    const auto ops = schedule_.ops(rank_);
    std::size_t next = 0;
    for (std::size_t i = 0; i <= ops.size(); i += i < ops.size() && ops[i].joined ? 2 : 1) {
      for (; next < list.size() && list[next].before <= i; ++next) add(list[next]);
      if (i == ops.size()) break;
      take([&](const Communication& receive) { return reads(ops[i], receive); }, i);
      if (ops[i].joined) take([&](const Communication& receive) { return reads(ops[i + 1], receive); }, i);
    }
    return std::move(placed_);
  }

 private:
  static bool reads(const Op& op, const Communication& receive) {
    return op.kind != OpKind::W && (op.kind == OpKind::F) == of_forward(receive.kind) && op.stage == receive.stage &&
           op.microbatch == receive.microbatch && op.slice == receive.slice;
  }

  int peer(const Communication& c) const {
    return schedule_.rank_of(c.stage + (of_forward(c.kind) == is_send(c.kind) ? 1 : -1), c.microbatch);
  }

  void add(const Communication& c) {
    if (is_receive(c.kind)) {
      deferred_.push_back(c);
      return;
    }
    if (is_send(c.kind) && rank_ < peer(c)) {
      take([&](const Communication& receive) { return peer(receive) == peer(c); }, c.before);
    }
    placed_.push_back(c);
  }

  // Places the deferred receives for which `wanted` holds before the op at `position`.
  template <typename Wanted>
  void take(Wanted&& wanted, std::size_t position) {
    const auto first =
        std::stable_partition(deferred_.begin(), deferred_.end(), [&](const auto& c) { return !wanted(c); });
    for (auto c = first; c != deferred_.end(); ++c) {
      c->before = static_cast<std::uint32_t>(position);
      placed_.push_back(*c);
    }
    deferred_.erase(first, deferred_.end());
  }

  const Schedule& schedule_;
  int rank_;
  std::vector<Communication> deferred_;
  std::vector<Communication> placed_;
};

using Lists = std::vector<std::vector<Communication>>;

Schedule with_lists(const Schedule& schedule, Lists lists) {
  ScheduleParts parts = schedule.parts();
  parts.communication = std::move(lists);
  parts.cells.clear();
  parts.communication_cells.clear();
  return Schedule(std::move(parts));
}

}  // namespace

Schedule with_communication(const Schedule& schedule, bool runtime_actions) {
  return with_lists(schedule, Placing(schedule, runtime_actions).run());
}

Schedule without_communication(const Schedule& schedule) {
  ScheduleParts parts = schedule.parts();
  parts.communication.clear();
  parts.communication_cells.clear();
  return Schedule(std::move(parts));
}

Schedule with_receives_just_in_time(const Schedule& schedule) {
  refuse_vocabulary(schedule, "their broadcasts and reductions have no sends and receives");
  Lists lists(to_size(schedule.num_ranks()));
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto ops = schedule.ops(rank);
    const auto place = [&](const Op& op, bool send, std::size_t before) {
      if (op.kind == OpKind::W) return;
      const bool forward = op.kind == OpKind::F;
      const int other = op.stage + (forward == send ? 1 : -1);
      if (other < 0 || other >= schedule.num_stages() || schedule.rank_of(other, op.microbatch) == rank) return;
      lists[rank].push_back(
          {.microbatch = op.microbatch,
           .stage = op.stage,
           .slice = op.slice,
           .before = static_cast<std::uint32_t>(before),
           .kind = forward ? (send ? CommunicationKind::send_forward : CommunicationKind::recv_forward)
                           : (send ? CommunicationKind::send_backward : CommunicationKind::recv_backward)});
    };
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const std::size_t end = i + (ops[i].joined ? 2 : 1);
      for (std::size_t j = i; j < end; ++j) place(ops[j], false, i);
      for (std::size_t j = i; j < end; ++j) place(ops[j], true, end);
      i = end - 1;
    }
  }
  return with_lists(schedule, std::move(lists));
}

Schedule with_deferred_receives(const Schedule& schedule) {
  Lists lists;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) lists.push_back(Deferring(schedule, rank).run());
  return with_lists(schedule, std::move(lists));
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
