#include "model/graph/queue_waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <queue>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/graph/op_graph_data.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

constexpr VertexId kNoRecompute = ~VertexId{0};

// Finds what each vertex waits for besides its needs in the graph.
class QueueWaits {
 public:
  QueueWaits(const OpGraph::Data& graph, const HostProgram& program, const CommunicatorOptions& options,
             const CommunicatorMapping& mapping)
      : graph_(graph), program_(program), options_(options), waits_(graph.vertices.size()) {
    find_vertices();
    for (const Message& message : program.messages) {
      const std::string name = options.serialized ? "" : mapping.communicator(message);
      queue_.push_back(number_.try_emplace(name, static_cast<int>(number_.size())).first->second);
    }
    for (int rank = 0; rank < std::ssize(program.ranks); ++rank) add_list(rank);
  }

  std::vector<std::vector<VertexId>> take() { return std::move(waits_); }

 private:
  // Where an op starts, with the recomputation before it, and where it ends.
  struct OpVertices {
    VertexId first = 0;
    VertexId last = 0;
  };

  void find_vertices() {
    const Schedule& schedule = *graph_.schedule;
    ops_.resize(to_size(schedule.num_ranks()));
    std::map<std::array<int, 4>, VertexId> sent;  // by (stage, microbatch, slice, forward)
    VertexId recompute = kNoRecompute;
    for (VertexId v = 0; v < graph_.vertices.size(); ++v) {
      const Vertex& vertex = graph_.vertices[v];
      if (vertex.kind == VertexKind::transfer) {
        sent[{vertex.stage, vertex.microbatch, vertex.slice, vertex.op == OpKind::F}] = v;
      } else if (vertex.kind == VertexKind::recompute) {
        recompute = v;
      } else if (vertex.kind == VertexKind::compute || vertex.kind == VertexKind::joint) {
        ops_[to_size(vertex.lane)].push_back({std::min(recompute, v), v});
        recompute = kNoRecompute;
      }
    }
    for (const Message& m : program_.messages) {
      transfers_.push_back(sent.at({m.stage, m.microbatch, m.slice, m.forward}));
    }
  }

  std::span<const Post> posts(const HostItem& item) const {
    return std::span(program_.posts).subspan(item.first, item.count);
  }

  // Adds to `out` the vertices after which an item of `rank` has ended.
  void add_ends(int rank, std::size_t item, std::vector<VertexId>& out) const {
    const HostItem& host_item = program_.ranks[rank][item];
    if (host_item.kind == HostItem::Kind::compute) {
      out.push_back(ops_[to_size(rank)][op_of_item_[item]].last);
    } else {
      for (const Post& post : posts(host_item)) out.push_back(transfers_[post.message]);
    }
  }

  static void append(std::vector<VertexId>& to, const std::vector<VertexId>& more) {
    to.insert(to.end(), more.begin(), more.end());
  }

  void add_list(int rank) {
    const auto& list = program_.ranks[rank];
    op_of_item_.assign(list.size(), 0);
    for (std::size_t i = 0, ops = 0; i < list.size(); ++i) {
      if (list[i].kind == HostItem::Kind::compute) op_of_item_[i] = ops++;
    }
    std::vector<std::vector<std::size_t>> data(list.size());  // by item: the items that it reads
    for (const auto& [before, after] : program_.data[rank]) data[after].push_back(before);
    std::vector<std::size_t> last_on_queue(number_.size(), list.size());
    std::size_t last_op = list.size();
    for (std::size_t i = 0; i < list.size(); ++i) {
      std::vector<VertexId> needs;
      for (const std::size_t before : data[i]) add_ends(rank, before, needs);
      if (options_.wait == HostWait::host && i > 0) add_ends(rank, i - 1, needs);
      if (list[i].kind == HostItem::Kind::compute) {
        append(waits_[ops_[to_size(rank)][op_of_item_[i]].first], needs);
        last_op = i;
        continue;
      }
      if (options_.wait == HostWait::stream && last_op < list.size()) add_ends(rank, last_op, needs);
      for (const Post& post : posts(list[i])) {
        std::size_t& before = last_on_queue[to_size(queue_[post.message])];
        if (before != list.size() && before != i) add_ends(rank, before, needs);
        before = i;
      }
      for (const Post& post : posts(list[i])) append(waits_[transfers_[post.message]], needs);
    }
  }

  const OpGraph::Data& graph_;
  const HostProgram& program_;
  const CommunicatorOptions& options_;
  std::map<std::string, int> number_;         // of each queue
  std::vector<int> queue_;                    // by message
  std::vector<VertexId> transfers_;           // by message
  std::vector<std::vector<OpVertices>> ops_;  // by rank, in the order of its list
  std::vector<std::size_t> op_of_item_;       // of the current rank
  std::vector<std::vector<VertexId>> waits_;  // by vertex
};

// Inserts the waits of each vertex before its order edge, which is its last need, if it has one.
void insert(OpGraph::Data& graph, std::vector<std::vector<VertexId>> waits) {
  std::vector<VertexId> targets;
  std::vector<std::uint32_t> offsets = {0};
  for (VertexId v = 0; v < graph.vertices.size(); ++v) {
    const auto begin = graph.targets.begin() + graph.offsets[v];
    auto end = graph.targets.begin() + graph.offsets[v + 1];
    Vertex& vertex = graph.vertices[v];
    const bool ordered = begin != end && graph.vertices[*(end - 1)].lane == vertex.lane;
    targets.insert(targets.end(), begin, ordered ? end - 1 : end);
    std::vector<VertexId>& added = waits[v];
    std::sort(added.begin(), added.end());
    added.erase(std::unique(added.begin(), added.end()), added.end());
    // The order edge of a transfer does not wait for the arrival of the one before.
    const bool transfer = vertex.kind == VertexKind::transfer;
    const auto known = transfer ? begin + 1 : end;
    std::erase_if(added, [&](VertexId need) { return std::find(begin, known, need) != known; });
    targets.insert(targets.end(), added.begin(), added.end());
    if (ordered) targets.push_back(*(end - 1));
    if (transfer) vertex.extra = static_cast<std::uint32_t>(added.size());
    offsets.push_back(static_cast<std::uint32_t>(targets.size()));
  }
  graph.targets = std::move(targets);
  graph.offsets = std::move(offsets);
}

// The vertices in a topological order, as near to that of their numbers as it can be; fewer if there is a cycle.
std::vector<VertexId> topological_order(const OpGraph::Data& graph) {
  const std::size_t size = graph.vertices.size();
  std::vector<std::uint32_t> first(size + 1, 0);  // of its followers, by vertex
  for (const VertexId need : graph.targets) ++first[need + 1];
  for (std::size_t v = 0; v < size; ++v) first[v + 1] += first[v];
  std::vector<VertexId> followers(graph.targets.size());
  std::vector<std::uint32_t> next(first.begin(), first.end() - 1);
  std::vector<std::uint32_t> missing(size);
  std::priority_queue<VertexId, std::vector<VertexId>, std::greater<>> ready;
  for (VertexId v = 0; v < size; ++v) {
    for (std::uint32_t i = graph.offsets[v]; i < graph.offsets[v + 1]; ++i) followers[next[graph.targets[i]]++] = v;
    missing[v] = graph.offsets[v + 1] - graph.offsets[v];
    if (missing[v] == 0) ready.push(v);
  }
  std::vector<VertexId> order;
  while (!ready.empty()) {
    const VertexId v = ready.top();
    ready.pop();
    order.push_back(v);
    for (std::uint32_t i = first[v]; i < first[v + 1]; ++i) {
      if (--missing[followers[i]] == 0) ready.push(followers[i]);
    }
  }
  return order;
}

void renumber(OpGraph::Data& graph, const std::vector<VertexId>& order) {
  std::vector<VertexId> number(order.size());
  for (VertexId v = 0; v < order.size(); ++v) number[order[v]] = v;
  std::vector<Vertex> vertices;
  std::vector<VertexId> targets;
  std::vector<std::uint32_t> offsets = {0};
  vertices.reserve(order.size());
  targets.reserve(graph.targets.size());
  offsets.reserve(graph.offsets.size());
  for (const VertexId v : order) {
    vertices.push_back(graph.vertices[v]);
    for (std::uint32_t i = graph.offsets[v]; i < graph.offsets[v + 1]; ++i) targets.push_back(number[graph.targets[i]]);
    offsets.push_back(static_cast<std::uint32_t>(targets.size()));
  }
  graph.vertices = std::move(vertices);
  graph.targets = std::move(targets);
  graph.offsets = std::move(offsets);
}

}  // namespace

void add_queue_waits(OpGraph::Data& graph, const CommunicatorOptions& options) {
  const CommunicatorMapping mapping = communicator_mapping(options.communicators, "communicators");
  const HostProgram program = host_program(*graph.schedule, options.batched);
  insert(graph, QueueWaits(graph, program, options, mapping).take());
  const std::vector<VertexId> order = topological_order(graph);
  if (order.size() == graph.vertices.size()) return renumber(graph, order);
  const CommunicatorVerdict verdict = check_communicators(
      program, {.communicator = mapping.communicator, .wait = options.wait, .serialized = options.serialized});
  throw ScheduleError(fmt::format("hangs with the communicators {}, each waits for the next: {}", mapping.name,
                                  to_string(verdict.cycle)));
}

}  // namespace sluice::model
