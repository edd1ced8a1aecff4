#include "exec/plan/message_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/errors.h"

namespace sluice::exec {
namespace {

// The messages of one lane between two ranks.
struct MessageEdge {
  std::vector<VertexId> sends;     // in the order of the sender
  std::vector<VertexId> receives;  // in the order of the receiver
  std::size_t sent = 0;            // posted by the sender
  std::size_t received = 0;        // posted by the receiver
};

// What a rank does next: a step of its plan, or a collective.
struct OrderedItem {
  VertexId vertex = 0;
  bool collective = false;
  std::size_t at = 0;
};

struct RankProgress {
  const RankPlan* plan = nullptr;
  std::vector<OrderedItem> items;
  std::size_t next = 0;
  bool at_collective = false;  // it has arrived at the collective that is next
  VertexId waits_for = 0;      // the message or collective that it waits for
  int waits_for_rank = 0;
};

class MessageOrderCheck {
 public:
  MessageOrderCheck(const OpGraph& graph, std::span<const RankPlan> plans)
      : graph_(graph),
        edges_(graph.lanes().size()),
        moved_(graph.size(), 0),
        freed_(graph.size(), 0),
        arrived_(graph.size(), 0) {
    for (const RankPlan& plan : plans) {
      RankProgress rank{.plan = &plan};
      for (std::size_t i = 0; i < plan.steps.size(); ++i) rank.items.push_back({plan.steps[i].vertex, false, i});
      for (std::size_t i = 0; i < plan.collectives.size(); ++i) {
        rank.items.push_back({plan.collectives[i].vertex, true, i});
      }
      std::stable_sort(rank.items.begin(), rank.items.end(),
                       [](const OrderedItem& a, const OrderedItem& b) { return a.vertex < b.vertex; });
      ranks_.push_back(std::move(rank));
      for (const PlannedMessage& send : plan.sends) edge_of(send.vertex).sends.push_back(send.vertex);
      std::vector<VertexId> receives;
      for (const PlannedMessage& receive : plan.receives) receives.push_back(receive.vertex);
      std::sort(receives.begin(), receives.end());  // as a worker posts them
      for (const VertexId receive : receives) edge_of(receive).receives.push_back(receive);
    }
  }

  void run() {
    check_edges();
    for (RankProgress& rank : ranks_) {
      for (const int receive : rank.plan->first_posts) free(*rank.plan, receive);
    }
    // Advance every rank as far as possible, until none moves.
    for (bool moves = true; moves;) {
      moves = false;
      for (RankProgress& rank : ranks_) {
        while (rank.next < rank.items.size() && goes_on(rank)) {
          ++rank.next;
          moves = true;
        }
      }
    }
    for (const RankProgress& rank : ranks_) {
      if (rank.next < rank.items.size()) throw_deadlock(rank);
    }
  }

 private:
  MessageEdge& edge_of(VertexId transfer) { return edges_[graph_[transfer].lane]; }

  void check_edges() const {
    for (std::size_t lane = 0; lane < edges_.size(); ++lane) {
      const MessageEdge& edge = edges_[lane];
      const auto [sent, received] =
          std::mismatch(edge.sends.begin(), edge.sends.end(), edge.receives.begin(), edge.receives.end());
      if (sent == edge.sends.end() && received == edge.receives.end()) continue;
      const auto name = [&](auto at, auto end) { return at == end ? "no further message" : graph_.name(*at); };
      throw ScheduleError(
          fmt::format("message {} from rank {} to rank {}: the sender sends {}, the receiver expects {}",
                      sent - edge.sends.begin(), graph_.lanes()[lane].rank, graph_.lanes()[lane].peer,
                      name(sent, edge.sends.end()), name(received, edge.receives.end())));
    }
  }

  void free(const RankPlan& plan, int receive) {
    freed_[plan.receives[receive].vertex] = 1;
    MessageEdge& edge = edge_of(plan.receives[receive].vertex);
    while (edge.received < edge.receives.size() && freed_[edge.receives[edge.received]] != 0) ++edge.received;
    move(edge);
  }

  void move(MessageEdge& edge) {
    const std::size_t both = std::min(edge.sent, edge.received);
    for (std::size_t i = both; i-- > 0 && moved_[edge.sends[i]] == 0;) moved_[edge.sends[i]] = 1;
  }

  bool has_moved(RankProgress& rank, VertexId transfer) {
    if (moved_[transfer] != 0) return true;
    const Lane& lane = graph_.lanes()[graph_[transfer].lane];
    rank.waits_for = transfer;
    rank.waits_for_rank = lane.rank == rank.plan->rank ? lane.peer : lane.rank;
    return false;
  }

  bool goes_on(RankProgress& rank) {
    const OrderedItem& item = rank.items[rank.next];
    const RankPlan& plan = *rank.plan;
    if (item.collective) return meets(rank, plan.collectives[item.at]);
    const PlannedStep& step = plan.steps[item.at];
    for (const int send : step.waits_for_sent) {
      if (!has_moved(rank, plan.sends[send].vertex)) return false;
    }
    for (int i = 0; step.kind == PlannedStep::Kind::op && i < step.num_ops; ++i) {
      const OpPlan& op = step.ops[i];
      if (op.receive != kNone && !has_moved(rank, plan.receives[op.receive].vertex)) return false;
      if (op.busy_send != kNone && !has_moved(rank, plan.sends[op.busy_send].vertex)) return false;
    }
    if (step.kind == PlannedStep::Kind::send) {
      MessageEdge& edge = edge_of(plan.sends[step.send].vertex);
      ++edge.sent;
      move(edge);
    }
    for (const int receive : step.posts) free(plan, receive);
    return true;
  }

  bool meets(RankProgress& rank, const PlannedCollective& collective) {
    if (!rank.at_collective) ++arrived_[collective.vertex];
    rank.at_collective = arrived_[collective.vertex] < std::ssize(collective.ranks);
    if (!rank.at_collective) return true;
    rank.waits_for = collective.vertex;
    for (const int other : collective.ranks) {
      const RankProgress& member = ranks_[other];
      const bool there =
          member.next < member.items.size() ? member.items[member.next].vertex >= collective.vertex : true;
      if (!there) rank.waits_for_rank = other;
    }
    return false;
  }

  // Follows the ranks that wait for each other until one repeats.
  [[noreturn]] void throw_deadlock(const RankProgress& first) const {
    std::vector<int> chain;
    int at = first.plan->rank;
    while (std::find(chain.begin(), chain.end(), at) == chain.end()) {
      chain.push_back(at);
      const RankProgress& rank = ranks_[at];
      if (rank.next == rank.items.size()) break;
      at = rank.waits_for_rank;
    }
    chain.erase(chain.begin(), std::find(chain.begin(), chain.end(), at));
    std::string text;
    for (const int each : chain) {
      const RankProgress& rank = ranks_[each];
      if (rank.next == rank.items.size()) {
        text += fmt::format("{}rank {} has ended", text.empty() ? "" : "; ", each);
        continue;
      }
      text += fmt::format("{}rank {} waits before {} for {} with rank {}", text.empty() ? "" : "; ", each,
                          graph_.name(rank.items[rank.next].vertex), graph_.name(rank.waits_for), rank.waits_for_rank);
    }
    throw ScheduleError("unbuffered messages deadlock: " + text);
  }

  const OpGraph& graph_;
  std::vector<MessageEdge> edges_;  // by lane
  std::vector<RankProgress> ranks_;
  std::vector<char> moved_;   // by transfer
  std::vector<char> freed_;   // by transfer: its receiver has a buffer for it
  std::vector<int> arrived_;  // by collective: number of ranks
};

}  // namespace

void check_message_order(const OpGraph& graph, std::span<const RankPlan> ranks) {
  MessageOrderCheck(graph, ranks).run();
}

}  // namespace sluice::exec
