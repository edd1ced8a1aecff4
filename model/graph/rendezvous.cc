#include "model/graph/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <span>
#include <utility>
#include <vector>

namespace sluice::model {
namespace {

class Run {
 public:
  Run(const Schedule& schedule, Exchange exchange)
      : schedule_(schedule),
        exchange_(exchange),
        posted_(2 * static_cast<std::size_t>(schedule.num_units()) * static_cast<std::size_t>(schedule.num_stages()),
                0),
        ranks_(static_cast<std::size_t>(schedule.num_ranks())) {}

  std::string find_cycle() {
    for (int rank = schedule_.num_ranks() - 1; rank >= 0; --rank) runnable_.push_back(rank);
    while (!runnable_.empty()) {
      const int rank = runnable_.back();
      runnable_.pop_back();
      while (post_group(rank)) {
      }
    }
    return shortest_cycle();
  }

 private:
  struct State {
    std::size_t begin = 0;  // of its current group
    std::size_t end = 0;
    std::int64_t open = 0;  // without a partner yet
  };

  std::span<const Communication> list(int rank) const { return schedule_.communication(rank); }
  State& state(int rank) { return ranks_[rank]; }

  // The index of a message, by what is sent.
  std::size_t message(const Communication& c) const {
    const bool forward = of_forward(c.kind);
    const int sender = is_send(c.kind) ? c.stage : c.stage + (forward ? -1 : 1);
    const std::int64_t cell = sender * schedule_.num_units() + schedule_.first_unit(c.microbatch) + c.slice;
    return 2 * static_cast<std::size_t>(cell) + (forward ? 0 : 1);
  }
  int partner(const Communication& c) const {
    const int stage = c.stage + (of_forward(c.kind) == is_send(c.kind) ? 1 : -1);
    return schedule_.rank_of(stage, c.microbatch);
  }

  // Starts the next group of a rank whose last one is complete. Returns false if it waits or is at its end.
  bool post_group(int rank) {
    State& here = state(rank);
    if (here.open > 0) return false;
    const auto all = list(rank);
    here.begin = here.end;
    if (here.begin == all.size()) return false;
    do {
      ++here.end;
    } while (exchange_ == Exchange::grouped && here.end < all.size() && all[here.end].before == all[here.begin].before);
    for (std::size_t i = here.begin; i < here.end; ++i) {
      const Communication& c = all[i];
      if (!is_send(c.kind) && !is_receive(c.kind)) continue;
      char& posted = posted_[message(c)];
      if (posted != 0) {  // the partner was here before
        posted = kMet;
        State& other = state(partner(c));
        if (is_receive(c.kind) && exchange_ == Exchange::buffered) continue;
        if (--other.open == 0) runnable_.push_back(partner(c));
      } else if (is_send(c.kind) && exchange_ == Exchange::buffered) {
        posted = kPosted;
      } else {
        posted = kPosted;
        ++here.open;
      }
    }
    return here.open == 0;
  }

  // The indices of the communications of the group that wait.
  std::vector<std::size_t> waiting(int rank) {
    std::vector<std::size_t> out;
    const State& here = state(rank);
    if (here.open == 0) return out;
    for (std::size_t i = here.begin; i < here.end; ++i) {
      const Communication& c = list(rank)[i];
      if ((is_send(c.kind) || is_receive(c.kind)) && posted_[message(c)] == kPosted) out.push_back(i);
    }
    return out;
  }

  std::string shortest_cycle() {
    std::vector<std::pair<int, std::size_t>> best;
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      const auto found = cycle_through(rank);
      if (!found.empty() && (best.empty() || found.size() < best.size())) best = found;
      if (best.size() == 2) break;
    }
    std::string text;
    const auto add = [&](const std::pair<int, std::size_t>& at) {
      text += to_string(list(at.first)[at.second], schedule_.sliced());
      text += schedule_.read_from_table() ? " at " + schedule_.communication_place(at.first, at.second)
                                          : fmt::format(" on rank {}", at.first);
    };
    for (const auto& at : best) {
      add(at);
      text += " -> ";
    }
    if (!best.empty()) add(best.front());
    return text;
  }

  // Breadth-first search over ranks that wait for ranks; empty if `start` is not reached again.
  std::vector<std::pair<int, std::size_t>> cycle_through(int start) {
    std::vector<int> from(ranks_.size(), -1);
    std::vector<std::size_t> by(ranks_.size(), 0);  // the communication of `from` that waits for it
    std::deque<int> queue = {start};
    while (!queue.empty()) {
      const int rank = queue.front();
      queue.pop_front();
      for (const std::size_t i : waiting(rank)) {
        const int next = partner(list(rank)[i]);
        if (next == start) {
          std::vector<std::pair<int, std::size_t>> cycle = {{rank, i}};
          for (int at = rank; at != start; at = from[at]) {
            cycle.emplace_back(from[at], by[at]);
          }
          std::reverse(cycle.begin(), cycle.end());
          return cycle;
        }
        if (from[next] != -1) continue;
        from[next] = rank;
        by[next] = i;
        queue.push_back(next);
      }
    }
    return {};
  }

  static constexpr char kPosted = 1;
  static constexpr char kMet = 2;

  const Schedule& schedule_;
  Exchange exchange_;
  std::vector<char> posted_;  // by message
  std::vector<State> ranks_;
  std::vector<int> runnable_;
};

}  // namespace

std::string hanging_cycle(const Schedule& schedule, Exchange exchange) { return Run(schedule, exchange).find_cycle(); }

Schedule with_receives_just_in_time(const Schedule& schedule) {
  ScheduleParts parts = schedule.parts();
  parts.communication.assign(parts.orders.size(), {});
  parts.cells.clear();
  parts.communication_cells.clear();
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    auto& out = parts.communication[rank];
    const auto list = schedule.ops(rank);
    const auto place = [&](const Op& op, bool send, std::size_t before) {
      if (op.kind == OpKind::W) return;
      const bool forward = op.kind == OpKind::F;
      const int other = op.stage + (forward == send ? 1 : -1);
      if (other < 0 || other >= schedule.num_stages() || schedule.rank_of(other, op.microbatch) == rank) return;
      out.push_back({.microbatch = op.microbatch,
                     .stage = op.stage,
                     .slice = op.slice,
                     .before = static_cast<std::uint32_t>(before),
                     .kind = forward ? (send ? CommunicationKind::send_forward : CommunicationKind::recv_forward)
                                     : (send ? CommunicationKind::send_backward : CommunicationKind::recv_backward)});
    };
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::size_t end = i + (list[i].joined ? 2 : 1);
      for (std::size_t j = i; j < end; ++j) place(list[j], false, i);
      for (std::size_t j = i; j < end; ++j) place(list[j], true, end);
      i = end - 1;
    }
  }
  return Schedule(std::move(parts));
}

}  // namespace sluice::model
