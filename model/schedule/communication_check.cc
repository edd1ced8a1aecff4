#include "model/schedule/communication_check.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "model/errors.h"

namespace sluice::model {
namespace {

constexpr std::uint32_t kNowhere = ~std::uint32_t{0};

class Check {
 public:
  explicit Check(const Schedule& schedule)
      : schedule_(schedule),
        cells_(static_cast<std::size_t>(schedule.num_units()) * static_cast<std::size_t>(schedule.num_stages())) {
    for (auto* table : {&forward_, &gradient_}) table->assign(cells_, kNowhere);
    for (auto& table : found_) table.assign(cells_, kNowhere);
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      const auto list = schedule.ops(rank);
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].kind == OpKind::W) continue;
        const std::size_t at = cell(list[i].stage, list[i].microbatch, list[i].slice);
        // A joint block is one step: its results are available after its second half, and it reads before its first.
        (list[i].kind == OpKind::F ? forward_ : gradient_)[at] = static_cast<std::uint32_t>(i);
      }
    }
  }

  void run() {
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      const auto list = schedule_.communication(rank);
      for (std::size_t i = 0; i < list.size(); ++i) check(rank, i, list[i]);
    }
    check_complete();
  }

 private:
  std::size_t cell(int stage, int microbatch, int slice) const {
    return static_cast<std::size_t>(stage * schedule_.num_units() + schedule_.first_unit(microbatch) + slice);
  }

  std::string text(const Communication& communication) const { return to_string(communication, schedule_.sliced()); }

  [[noreturn]] void fail(int rank, std::size_t index, const std::string& rule) const {
    throw ScheduleError(fmt::format("{}: {}: {}", schedule_.communication_place(rank, index),
                                    text(schedule_.communication(rank)[index]), rule));
  }

  void check(int rank, std::size_t index, const Communication& c) {
    const auto list = schedule_.ops(rank);
    const bool past_the_end = c.before > list.size();
    const bool backwards = index > 0 && schedule_.communication(rank)[index - 1].before > c.before;
    const bool inside = !past_the_end && c.before > 0 && list[c.before - 1].joined;
    if (past_the_end || backwards || inside) fail(rank, index, "its position is not between two steps, in their order");
    if (c.stage < 0 || c.stage >= schedule_.num_stages()) {
      fail(rank, index, fmt::format("there are stages 0 to {}", schedule_.num_stages() - 1));
    }
    if (!is_send(c.kind) && !is_receive(c.kind)) {
      if (schedule_.chunk_of(rank, c.stage) == std::ssize(schedule_.stages_of(rank))) {
        fail(rank, index, "this rank does not have the stage");
      }
      return;
    }
    if (c.microbatch < 0 || c.microbatch >= schedule_.total_microbatches()) {
      fail(rank, index, fmt::format("there are microbatches 0 to {}", schedule_.total_microbatches() - 1));
    }
    if (c.slice < 0 || c.slice >= schedule_.num_slices(c.microbatch)) {
      fail(rank, index, fmt::format("there are slices 0 to {}", schedule_.num_slices(c.microbatch) - 1));
    }
    if (schedule_.rank_of(c.stage, c.microbatch) != rank) {
      fail(rank, index, fmt::format("the stage is on rank {}", schedule_.rank_of(c.stage, c.microbatch)));
    }
    const bool next = of_forward(c.kind) == is_send(c.kind);
    const int other = c.stage + (next ? 1 : -1);
    if (other < 0 || other >= schedule_.num_stages()) {
      fail(rank, index, fmt::format("there is no stage {} it", next ? "after" : "before"));
    }
    if (schedule_.rank_of(other, c.microbatch) == rank) {
      fail(rank, index, fmt::format("stage {} is on the same rank", other));
    }
    std::uint32_t& found = found_[static_cast<std::size_t>(c.kind)][cell(c.stage, c.microbatch, c.slice)];
    if (found != kNowhere) fail(rank, index, "occurs twice, first at " + schedule_.communication_place(rank, found));
    found = static_cast<std::uint32_t>(index);
    // The op that produces it, or the one that reads it.
    const std::uint32_t op = (of_forward(c.kind) ? forward_ : gradient_)[cell(c.stage, c.microbatch, c.slice)];
    if (op == kNowhere) fail(rank, index, "its microbatch is forward-only");
    if (is_send(c.kind) && op >= c.before) {
      fail(rank, index, fmt::format("precedes {}, which produces it", to_string(list[op], schedule_.sliced())));
    }
    if (is_receive(c.kind) && op < c.before) {
      fail(rank, index, fmt::format("follows {}, which reads it", to_string(list[op], schedule_.sliced())));
    }
  }

  void check_complete() const {
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      for (int mb = 0; mb < schedule_.total_microbatches(); ++mb) {
        if (stage + 1 == schedule_.num_stages()) break;
        if (schedule_.rank_of(stage, mb) == schedule_.rank_of(stage + 1, mb)) continue;
        for (int slice = 0; slice < schedule_.num_slices(mb); ++slice) {
          require(CommunicationKind::send_forward, stage, mb, slice);
          require(CommunicationKind::recv_forward, stage + 1, mb, slice);
          if (schedule_.shape(mb).forward_only) continue;
          require(CommunicationKind::send_backward, stage + 1, mb, slice);
          require(CommunicationKind::recv_backward, stage, mb, slice);
        }
      }
    }
  }

  void require(CommunicationKind kind, int stage, int microbatch, int slice) const {
    if (found_[static_cast<std::size_t>(kind)][cell(stage, microbatch, slice)] != kNowhere) return;
    const Communication missing{.microbatch = microbatch,
                                .stage = static_cast<std::int16_t>(stage),
                                .slice = static_cast<std::int16_t>(slice),
                                .kind = kind};
    throw ScheduleError(
        fmt::format("{}: {} is missing", schedule_.place(schedule_.rank_of(stage, microbatch)), text(missing)));
  }

  const Schedule& schedule_;
  std::size_t cells_;
  std::vector<std::uint32_t> forward_;   // by cell: position of the F
  std::vector<std::uint32_t> gradient_;  // and of the B or I
  std::vector<std::uint32_t> found_[4];  // by kind of send and receive, and cell: index of the communication
};

// What `rank` sends to (or receives from) each peer, as indices of its communication.
using ByPeer = std::map<int, std::vector<std::size_t>>;
ByPeer by_peer(const Schedule& schedule, int rank, bool sends) {
  ByPeer out;
  const auto list = schedule.communication(rank);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (sends ? !is_send(list[i].kind) : !is_receive(list[i].kind)) continue;
    const int other = list[i].stage + (of_forward(list[i].kind) == sends ? 1 : -1);
    out[schedule.rank_of(other, list[i].microbatch)].push_back(i);
  }
  return out;
}

bool receives_what_is_sent(const Communication& receive, const Communication& send) {
  const bool forward = of_forward(send.kind);
  return forward == of_forward(receive.kind) && receive.stage == send.stage + (forward ? 1 : -1) &&
         receive.microbatch == send.microbatch && receive.slice == send.slice;
}

}  // namespace

void check_communication(const Schedule& schedule) { Check(schedule).run(); }

void check_communication_order(const Schedule& schedule) {
  std::vector<ByPeer> receives;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) receives.push_back(by_peer(schedule, rank, false));
  for (int from = 0; from < schedule.num_ranks(); ++from) {
    for (const auto& [to, sent] : by_peer(schedule, from, true)) {
      const auto& received = receives[to][from];
      // The same number of both, since nothing is missing.
      for (std::size_t i = 0; i < sent.size(); ++i) {
        const Communication& send = schedule.communication(from)[sent[i]];
        const Communication& receive = schedule.communication(to)[received[i]];
        if (receives_what_is_sent(receive, send)) continue;
        throw ScheduleError(
            fmt::format("{}: {}: the next message from rank {} is {}, at {}: both must have the same order",
                        schedule.communication_place(to, received[i]), to_string(receive, schedule.sliced()), from,
                        to_string(send, schedule.sliced()), schedule.communication_place(from, sent[i])));
      }
    }
  }
}

}  // namespace sluice::model
