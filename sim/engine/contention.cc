#include "sim/engine/contention.h"

#include <algorithm>
#include <cmath>

#include "model/graph/links.h"
#include "model/to_size.h"
#include "sim/engine/shared_links.h"

namespace sluice::sim {
namespace {

constexpr LaneId kNoLane = -1;
constexpr Duration kUnknown = Duration::min();

// Part of a transfer's lane time during which its bytes move; the rest follows.
Duration on_wire(const SharedLink& link, Duration takes) {
  if (link.wire_fraction >= 1) return takes;
  return Duration{std::llround(link.wire_fraction * static_cast<double>(takes.count()))};
}

// Place of a vertex in `sharing.links`; -1 for one that shares nothing.
int link_of(const OpGraph& graph, const LinkSharing& sharing, const Vertex& vertex) {
  const int ranks = graph.schedule().num_ranks();
  if (vertex.kind == VertexKind::transfer) return vertex.lane - 2 * ranks;
  if (!is_data_collective(graph, vertex)) return -1;
  const auto link = num_links(graph) + vertex.lane - ranks;
  return link < std::ssize(sharing.links) ? link : -1;
}

// Each lane processes its vertices, ahead of the clock, as far as the times of their dependencies are known. It stops
// at a vertex with an unknown dependency, which wakes it later, and at a transfer on a shared link until that ends.
// Repetition c of a vertex depends on repetition c of its dependencies. Ranks are never two repetitions apart: the
// first stage continues only after all forwards, backwards and transfers, and everything else follows it. Hence two
// times per vertex suffice. Without repetitions, a time that is not known yet is kUnknown, and nothing is counted.
template <bool Repeats>
class ContendedRun {
 public:
  ContendedRun(const OpGraph& graph, const Prices& prices, int copies, bool steps)
      : graph_(graph),
        prices_(prices),
        vertices_(graph.vertices()),
        num_links_(num_links(graph)),
        first_link_(2 * graph.schedule().num_ranks()),
        copies_(copies),
        links_(prices.sharing),
        lanes_(graph.lanes().size()),
        times_done_(Repeats ? graph.size() : 0, 0),
        done_((Repeats ? 2 : 1) * std::size_t{graph.size()}, kUnknown) {
    list_vertices(steps);
    find_links();
    for (const LaneState& lane : lanes_) busy_lanes_ += lane.count > 0 ? 1 : 0;
    if constexpr (Repeats) {
      copy_ends_.resize(copies);
      lanes_through_.assign(copies, 0);
    }
    ready_.reserve(lanes_.size());
  }

  // `start`: by vertex, or null.
  void begin(std::vector<Duration>* start) {
    start_ = start;
    if (start != nullptr) start->resize(graph_.size());
    for (LaneId lane = 0; lane < std::ssize(lanes_); ++lane) {
      advance(lane);
      advance_ready();
    }
  }

  // Advances to the next end of a transfer on a shared link. Returns false when no transfer is left.
  bool step() {
    const int link = links_.next_end();
    if (link < 0) return false;
    const LaneId lane = link < num_links_ ? first_link_ + link : graph_.collective_lane(link - num_links_);
    LaneState& state = lanes_[lane];
    resolve(lane, order_[state.first + state.position], links_.began(link), links_.now() + state.off_wire);
    advance(lane);
    advance_ready();
    return true;
  }

  bool slowed() const { return links_.slowed(); }
  int complete_copies() const { return complete_copies_; }
  const LaneTimes& copy_end(int copy) const { return copy_ends_[copy]; }
  std::vector<Duration>&& take_done() { return std::move(done_); }

 private:
  struct LaneState {
    std::size_t first = 0;  // of its vertices in order_
    std::size_t count = 0;
    std::size_t position = 0;
    int copy = 0;
    Duration free{};
    Duration off_wire{};  // rest of the current transfer after its bytes have moved
    int link = -1;        // in `sharing.links`; -1: its vertices share nothing
    // Linked list of the lanes that wait for a vertex of this one; and the vertex that this one waits for.
    LaneId first_waiter = kNoLane;
    LaneId next_waiter = kNoLane;
    VertexId awaited = 0;
  };

  // When the result of the vertex is available, in repetition `copy`.
  Duration& done(VertexId v, int copy) { return done_[Repeats && copy % 2 == 1 ? graph_.size() + v : v]; }
  bool is_done(VertexId v, int copy) const { return Repeats ? times_done_[v] > copy : done_[v] != kUnknown; }

  void list_vertices(bool steps) {
    const auto listed = [&](const Vertex& vertex) {
      return steps || (vertex.kind != VertexKind::collective && vertex.kind != VertexKind::optimizer);
    };
    for (const Vertex& vertex : vertices_) lanes_[vertex.lane].count += listed(vertex) ? 1 : 0;
    std::size_t first = 0;
    for (LaneState& lane : lanes_) {
      lane.first = lane.position = first;  // the position serves as a cursor below
      first += lane.count;
    }
    order_.resize(first);
    for (VertexId v = 0; v < graph_.size(); ++v) {
      if (listed(vertices_[v])) {
        order_[lanes_[vertices_[v].lane].position++] = v;
      } else if constexpr (Repeats) {
        times_done_[v] = static_cast<std::uint16_t>(copies_);  // nothing waits for what is omitted
      }
    }
    for (LaneState& lane : lanes_) lane.position = 0;
  }

  // All transfers of a lane are on its link, and the data-parallel collectives of a rank on that of the rank.
  void find_links() {
    const int ranks = graph_.schedule().num_ranks();
    const auto set_link = [&](LaneId lane, int link) {
      if (link < std::ssize(prices_.sharing.links) && links_.shares(link)) lanes_[lane].link = link;
    };
    for (int link = 0; link < num_links_; ++link) set_link(first_link_ + link, link);
    for (int rank = 0; rank < ranks; ++rank) set_link(graph_.collective_lane(rank), num_links_ + rank);
  }

  void advance_ready() {
    while (!ready_.empty()) {
      const LaneId lane = ready_.back();
      ready_.pop_back();
      advance(lane);
    }
  }

  void advance(LaneId lane) {
    LaneState& state = lanes_[lane];
    if (state.count == 0) return;
    while (state.copy < copies_) {
      const VertexId v = order_[state.first + state.position];
      const bool transfer = vertices_[v].kind == VertexKind::transfer;
      Duration start = state.free;
      // The first dependency of a transfer is its data, then come the queues; the last is the order on its lane.
      for (const VertexId need : transfer ? graph_.needs(v).first(1 + vertices_[v].extra) : graph_.needs(v)) {
        if (!is_done(need, state.copy)) {
          LaneState& there = lanes_[vertices_[need].lane];
          state.awaited = need;
          state.next_waiter = there.first_waiter;
          there.first_waiter = lane;
          return;
        }
        start = std::max(start, done(need, state.copy));
      }
      const Duration takes = prices_.duration[v];
      if (state.link >= 0 && (transfer || is_data_collective(graph_, vertices_[v]))) {
        const Duration wire = on_wire(prices_.sharing.links[to_size(state.link)], takes);
        if (wire > Duration{0}) {
          state.off_wire = takes - wire;
          links_.add(state.link, start, wire, tie(lane, state.copy, v));
          return;
        }
      }
      resolve(lane, v, start, start + takes);
    }
  }

  // Breaks ties in a queue by rank, then op.
  std::uint64_t tie(LaneId lane, int copy, VertexId v) const {
    const auto rank = static_cast<std::uint64_t>(graph_.lanes()[lane].rank);
    return (rank << 48) | (static_cast<std::uint64_t>(copy) << 32) | v;
  }

  // Records the times of `v`, the next vertex of `lane`, and wakes the lanes that wait for it.
  void resolve(LaneId lane, VertexId v, Duration start, Duration end) {
    LaneState& state = lanes_[lane];
    if (start_ != nullptr) (*start_)[v] = start;
    done(v, state.copy) = end + prices_.lane_latency[lane];
    if constexpr (Repeats) ++times_done_[v];
    state.free = end;
    if (vertices_[v].kind == VertexKind::collective) {
      for (const int rank : graph_.collective(vertices_[v]).ranks) {
        Duration& free = lanes_[graph_.collective_lane(rank)].free;
        free = std::max(free, end);
      }
    }
    for (LaneId* waiter = &state.first_waiter; *waiter != kNoLane;) {
      LaneState& other = lanes_[*waiter];
      if (other.awaited == v) {
        ready_.push_back(*waiter);
        *waiter = other.next_waiter;
      } else {
        waiter = &other.next_waiter;
      }
    }
    if (++state.position == state.count) end_copy(lane);
  }

  void end_copy(LaneId lane) {
    LaneState& state = lanes_[lane];
    if constexpr (Repeats) {
      LaneTimes& ends = copy_ends_[state.copy];
      if (ends.empty()) ends.resize(lanes_.size());
      ends[lane] = state.free;
      if (++lanes_through_[state.copy] == busy_lanes_) complete_copies_ = state.copy + 1;
    }
    state.position = 0;
    ++state.copy;
  }

  const OpGraph& graph_;
  const Prices& prices_;
  std::span<const Vertex> vertices_;
  int num_links_;
  LaneId first_link_;
  int copies_;
  SharedLinks links_;
  std::vector<LaneState> lanes_;
  std::vector<VertexId> order_;            // each lane's vertices, one lane after another
  std::vector<std::uint16_t> times_done_;  // by vertex: repetitions whose times are known
  std::vector<Duration> done_;             // by vertex; odd repetitions after even ones
  std::vector<Duration>* start_ = nullptr;
  std::vector<LaneId> ready_;  // woken lanes
  int busy_lanes_ = 0;
  std::vector<LaneTimes> copy_ends_;
  std::vector<int> lanes_through_;  // by repetition
  int complete_copies_ = 0;
};

}  // namespace

Timeline simulate_contended(const OpGraph& graph, const Prices& prices, bool* slowed) {
  Timeline timeline;
  ContendedRun<false> run(graph, prices, 1, true);
  run.begin(&timeline.start);
  while (run.step()) {
  }
  if (slowed != nullptr) *slowed = run.slowed();
  timeline.end = run.take_done();
  timeline.lane_latency = prices.lane_latency;
  // A timeline has the time at which a transfer leaves its lanes, the run that of its arrival.
  for (VertexId v = 0; v < graph.size(); ++v) timeline.end[v] -= prices.lane_latency[graph[v].lane];
  return timeline;
}

void repeat_contended(const OpGraph& graph, const Prices& prices, int times,
                      const std::function<bool(const std::vector<LaneTimes>&)>& enough) {
  ContendedRun<true> run(graph, prices, std::max(2, times), false);
  run.begin(nullptr);
  std::vector<LaneTimes> ends;
  bool more = true;
  while (true) {
    while (std::ssize(ends) < run.complete_copies()) {
      ends.push_back(run.copy_end(static_cast<int>(ends.size())));
      if (enough(ends)) return;
    }
    if (!more) return;
    more = run.step();
  }
}

bool contends(const OpGraph& graph, const Prices& prices, const Timeline& unshared) {
  struct Passage {
    Duration start{};
    Duration end{};
  };
  const std::vector<SharedLink>& links = prices.sharing.links;
  std::vector<std::size_t> transfers(links.size(), 0);
  for (const Vertex& vertex : graph.vertices()) {
    if (const int link = link_of(graph, prices.sharing, vertex); link >= 0) ++transfers[to_size(link)];
  }
  std::vector<std::vector<Passage>> passages(links.size());  // in their order
  for (std::size_t link = 0; link < links.size(); ++link) passages[link].reserve(transfers[link]);
  for (VertexId v = 0; v < graph.size(); ++v) {
    const int place = link_of(graph, prices.sharing, graph[v]);
    if (place < 0) continue;
    const std::size_t link = to_size(place);
    const Duration wire = links[link].uses.empty() ? Duration{0} : on_wire(links[link], prices.duration[v]);
    if (wire > Duration{0}) passages[link].push_back({unshared.start[v], unshared.start[v] + wire});
  }
  struct Cursor {
    std::span<const Passage> left;
    double share = 0;
    bool queues = false;
    Duration until{};  // end of the last started one
  };
  std::vector<std::vector<Cursor>> resources(to_size(prices.sharing.num_resources));
  for (std::size_t link = 0; link < links.size(); ++link) {
    for (const ResourceUse& use : links[link].uses) {
      resources[use.resource].push_back({passages[link], use.share, links[link].policy == Sharing::queue, Duration{0}});
    }
  }
  for (std::vector<Cursor>& cursors : resources) {
    while (true) {
      Cursor* next = nullptr;
      for (Cursor& cursor : cursors) {
        if (cursor.left.empty()) continue;
        if (next == nullptr || cursor.left.front().start < next->left.front().start) next = &cursor;
      }
      if (next == nullptr) break;
      const Passage passage = next->left.front();
      next->left = next->left.subspan(1);
      next->until = passage.end;
      double sum = 0;
      int moving = 0;
      for (const Cursor& cursor : cursors) {
        if (cursor.until <= passage.start) continue;
        sum += cursor.share;
        ++moving;
      }
      if (moving > 1 && (next->queues || sum > 1)) return true;
    }
  }
  return false;
}

}  // namespace sluice::sim
