#include "model/graph/communicators.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <unordered_map>

#include "model/to_size.h"

namespace sluice::model {
namespace {

using Node = std::uint32_t;
constexpr std::uint32_t kNoItem = ~std::uint32_t{0};

// Reasons of edges; from kQueue on, kQueue + the number of the communicator.
enum : std::uint32_t { kInside, kMatch, kData, kCompute, kStream, kHost, kQueue };

// An edge to a node that waits for it.
struct WaitEdge {
  Node from = 0;
  Node to = 0;
  std::uint32_t reason = kInside;
};

// Edges by source.
class CommunicatorGraph {
 public:
  CommunicatorGraph(std::size_t nodes, std::span<const WaitEdge> edges) : first_(nodes + 1, 0), edges_(edges.size()) {
    for (const WaitEdge& edge : edges) ++first_[edge.from + 1];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    std::vector<std::uint32_t> next(first_.begin(), first_.end() - 1);
    for (const WaitEdge& edge : edges) edges_[next[edge.from]++] = edge;
  }

  std::size_t size() const { return first_.size() - 1; }
  std::span<const WaitEdge> out(Node node) const {
    return std::span(edges_).subspan(first_[node], first_[node + 1] - first_[node]);
  }

  // Returns whether each node is on a cycle, or on a path between two: the others are removed from both ends.
  std::vector<char> blocked() const {
    std::vector<char> left(size(), 1);
    remove(left, edges_, false);
    if (std::find(left.begin(), left.end(), 1) == left.end()) return {};
    remove(left, edges_, true);
    return left;
  }

  // Returns a shortest cycle, as edges of which each starts where the last one ends.
  std::vector<WaitEdge> shortest_cycle(const std::vector<char>& left) const {
    std::vector<WaitEdge> best;
    std::vector<Node> seen_from(size(), kNoItem);
    std::vector<WaitEdge> entered(size());
    std::int64_t steps = 100'000'000;
    for (Node start = 0; start < size() && (steps > 0 || best.empty()); ++start) {
      if (left[start] == 0) continue;
      const std::size_t limit = best.empty() ? size() : best.size() - 1;
      auto found = cycle_through(start, limit, left, seen_from, entered, steps);
      if (!found.empty()) best = std::move(found);
    }
    return best;
  }

 private:
  // Removes all nodes without a predecessor that is left (without a successor if `backward`).
  void remove(std::vector<char>& left, std::span<const WaitEdge> edges, bool backward) const {
    std::vector<std::uint32_t> degree(size(), 0);
    for (const WaitEdge& edge : edges) {
      if (left[edge.from] != 0 && left[edge.to] != 0) ++degree[backward ? edge.from : edge.to];
    }
    const std::optional<CommunicatorGraph> reversed = backward ? std::optional(reverse()) : std::nullopt;
    const CommunicatorGraph& graph = backward ? *reversed : *this;
    std::vector<Node> ready;
    for (Node node = 0; node < size(); ++node) {
      if (left[node] != 0 && degree[node] == 0) ready.push_back(node);
    }
    while (!ready.empty()) {
      const Node node = ready.back();
      ready.pop_back();
      left[node] = 0;
      for (const WaitEdge& edge : graph.out(node)) {
        if (left[edge.to] != 0 && --degree[edge.to] == 0) ready.push_back(edge.to);
      }
    }
  }

  CommunicatorGraph reverse() const {
    std::vector<WaitEdge> edges(edges_);
    for (WaitEdge& edge : edges) std::swap(edge.from, edge.to);
    return {size(), edges};
  }

  // Breadth-first search among the nodes that are left; empty if no cycle of at most `limit` edges leads to `start`.
  std::vector<WaitEdge> cycle_through(Node start, std::size_t limit, const std::vector<char>& left,
                                      std::vector<Node>& seen_from, std::vector<WaitEdge>& entered,
                                      std::int64_t& steps) const {
    std::vector<Node> level = {start};
    for (std::size_t length = 1; length <= limit && !level.empty(); ++length) {
      std::vector<Node> next;
      for (const Node node : level) {
        for (const WaitEdge& edge : out(node)) {
          --steps;
          if (edge.to == start) return path_to(edge, start, entered);
          if (left[edge.to] == 0 || seen_from[edge.to] == start) continue;
          seen_from[edge.to] = start;
          entered[edge.to] = edge;
          next.push_back(edge.to);
        }
      }
      level = std::move(next);
    }
    return {};
  }

  static std::vector<WaitEdge> path_to(const WaitEdge& last, Node start, const std::vector<WaitEdge>& entered) {
    std::vector<WaitEdge> path = {last};
    while (path.back().from != start) path.push_back(entered[path.back().from]);
    std::reverse(path.begin(), path.end());
    return path;
  }

  std::vector<std::uint32_t> first_;
  std::vector<WaitEdge> edges_;
};

// Builds the graph. Items are numbered rank by rank, and item i has the nodes 2i (start) and 2i + 1 (end); after them,
// each collective has one node between the starts and the ends of its members.
class CommunicatorCheck {
 public:
  CommunicatorCheck(const HostProgram& program, const CommunicatorModel& model) : program_(program), model_(model) {
    first_item_.push_back(0);
    for (const auto& list : program.ranks) {
      first_item_.push_back(first_item_.back() + static_cast<std::uint32_t>(list.size()));
    }
    name_communicators();
    for (int rank = 0; rank < std::ssize(program.ranks); ++rank) add_list(rank);
    for (const auto& [key, channel] : channels_) add_channel(key, channel);
  }

  CommunicatorVerdict verdict() {
    const CommunicatorGraph graph(std::size_t{2} * first_item_.back() + program_.collectives.size(), edges_);
    const std::vector<char> blocked = graph.blocked();
    if (!blocked.empty()) verdict_.cycle = steps_of(graph.shortest_cycle(blocked));
    return std::move(verdict_);
  }

 private:
  // Communicator, sender, receiver.
  using ChannelKey = std::array<int, 3>;
  // What a sender and a receiver post on a channel, in their orders: messages and items.
  struct Channel {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> sends;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> receives;
  };

  static Node start(std::uint32_t item) { return 2 * item; }
  static Node end(std::uint32_t item) { return 2 * item + 1; }
  void add(Node from, Node to, std::uint32_t reason) { edges_.push_back({from, to, reason}); }

  int communicator(const std::string& name) {
    const auto [at, added] = number_.try_emplace(name, static_cast<int>(names_.size()));
    if (added) names_.push_back(name);
    return at->second;
  }

  void name_communicators() {
    of_message_.reserve(program_.messages.size());
    for (const Message& message : program_.messages) of_message_.push_back(communicator(model_.communicator(message)));
    for (const std::string& name : program_.collectives) of_collective_.push_back(communicator(name));
    last_on_queue_.assign(names_.size(), kNoItem);
  }

  void add_list(int rank) {
    if (!program_.data.empty()) {
      for (const auto& [before, after] : program_.data[rank]) {
        add(end(first_item_[rank] + before), start(first_item_[rank] + after), kData);
      }
    }
    std::uint32_t last_compute = kNoItem;
    const auto& list = program_.ranks[rank];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::uint32_t item = first_item_[rank] + static_cast<std::uint32_t>(i);
      add(start(item), end(item), kInside);
      if (model_.wait == HostWait::host && i > 0) add(end(item - 1), start(item), kHost);
      const bool compute = list[i].kind == HostItem::Kind::compute;
      if (last_compute != kNoItem && (compute || model_.wait == HostWait::stream)) {
        add(end(last_compute), start(item), compute ? kCompute : kStream);
      }
      if (compute) last_compute = item;
      if (!compute) enqueue(list[i], item);
    }
    for (const int queue : used_) last_on_queue_[queue] = kNoItem;
    used_.clear();
  }

  // Adds the edges of a group or collective on its queues.
  void enqueue(const HostItem& host_item, std::uint32_t item) {
    if (host_item.kind == HostItem::Kind::collective) {
      const Node middle = 2 * first_item_.back() + host_item.first;
      add(start(item), middle, kMatch);
      add(middle, end(item), kMatch);
      follow_queue(of_collective_[host_item.first], item);
      return;
    }
    for (const Post& post : std::span(program_.posts).subspan(host_item.first, host_item.count)) {
      const Message& message = program_.messages[post.message];
      const int queue = of_message_[post.message];
      auto& channel = channels_[{queue, message.from, message.to}];
      (post.send ? channel.sends : channel.receives).emplace_back(post.message, item);
      follow_queue(queue, item);
    }
  }

  void follow_queue(int queue, std::uint32_t item) {
    std::uint32_t& last = last_on_queue_[model_.serialized ? 0 : queue];
    if (last == item) return;  // several posts of a group
    if (last != kNoItem) add(end(last), start(item), kQueue + static_cast<std::uint32_t>(queue));
    last = item;
    used_.push_back(model_.serialized ? 0 : queue);
  }

  // Pairs sends and receives by their positions.
  void add_channel(const ChannelKey& key, const Channel& channel) {
    CrossedMessages crossed{.communicator = names_[key[0]], .from = key[1], .to = key[2]};
    std::size_t first = channel.sends.size();
    std::size_t last = 0;
    for (std::size_t i = 0; i < channel.sends.size(); ++i) {
      const auto [sent, send_item] = channel.sends[i];
      const auto [received, receive_item] = channel.receives[i];
      add(start(send_item), end(receive_item), kMatch);
      if (!model_.buffered) add(start(receive_item), end(send_item), kMatch);
      if (sent == received) continue;
      ++crossed.count;
      first = std::min(first, i);
      last = i + 1;
    }
    if (crossed.count == 0) return;
    for (std::size_t i = first; i < last; ++i) {
      crossed.sent.push_back(describe(channel.sends[i].second));
      crossed.received.push_back(describe(channel.receives[i].second));
    }
    verdict_.crossed.push_back(std::move(crossed));
  }

  int rank_of(std::uint32_t item) const {
    return static_cast<int>(std::upper_bound(first_item_.begin(), first_item_.end(), item) - first_item_.begin()) - 1;
  }
  std::string describe(std::uint32_t item) const {
    const int rank = rank_of(item);
    return program_.describe ? program_.describe(rank, item - first_item_[rank])
                             : fmt::format("item {} on rank {}", item - first_item_[rank], rank);
  }

  // The items of a cycle from the last to the first, so that each waits for the next.
  std::vector<CycleStep> steps_of(const std::vector<WaitEdge>& cycle) const {
    std::vector<CycleStep> steps;
    for (auto edge = cycle.rbegin(); edge != cycle.rend(); ++edge) {
      const std::uint32_t item = edge->to / 2;
      if (item >= first_item_.back() || edge->reason == kInside) continue;  // a collective's own node, or the same item
      steps.push_back({rank_of(item), describe(item), reason(edge->reason)});
    }
    return steps;
  }

  std::string reason(std::uint32_t reason) const {
    static constexpr const char* kNames[] = {"", "match", "data", "compute", "stream", "host"};
    return reason < kQueue ? kNames[reason]
                           : "queue " + (model_.serialized ? std::string("of the GPU") : names_[reason - kQueue]);
  }

  const HostProgram& program_;
  const CommunicatorModel& model_;
  std::vector<std::uint32_t> first_item_;  // by rank, and one more
  std::vector<std::string> names_;
  std::unordered_map<std::string, int> number_;
  std::vector<int> of_message_;
  std::vector<int> of_collective_;
  std::vector<std::uint32_t> last_on_queue_;
  std::vector<int> used_;  // queues of the current rank
  std::map<ChannelKey, Channel> channels_;
  std::vector<WaitEdge> edges_;
  CommunicatorVerdict verdict_;
};

}  // namespace

std::uint32_t HostProgram::add_compute(int rank) {
  ranks[rank].push_back({HostItem::Kind::compute, 0, 0});
  return static_cast<std::uint32_t>(ranks[rank].size() - 1);
}

std::uint32_t HostProgram::add_group(int rank, const std::vector<Post>& group) {
  ranks[rank].push_back(
      {HostItem::Kind::group, static_cast<std::uint32_t>(posts.size()), static_cast<std::uint32_t>(group.size())});
  posts.insert(posts.end(), group.begin(), group.end());
  return static_cast<std::uint32_t>(ranks[rank].size() - 1);
}

std::uint32_t HostProgram::add_collective(int rank, std::uint32_t collective) {
  ranks[rank].push_back({HostItem::Kind::collective, collective, 0});
  return static_cast<std::uint32_t>(ranks[rank].size() - 1);
}

std::int64_t CommunicatorVerdict::num_crossed() const {
  return std::accumulate(crossed.begin(), crossed.end(), std::int64_t{0},
                         [](std::int64_t sum, const CrossedMessages& each) { return sum + each.count; });
}

CommunicatorVerdict check_communicators(const HostProgram& program, const CommunicatorModel& model) {
  return CommunicatorCheck(program, model).verdict();
}

std::string to_string(const std::vector<CycleStep>& cycle) {
  std::string text;
  for (const CycleStep& step : cycle) text += fmt::format("{} -[{}]-> ", step.item, step.reason);
  return cycle.empty() ? text : text + cycle.front().item;
}

}  // namespace sluice::model
