// Public header.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"

namespace sluice::model {

inline constexpr VertexId kNoVertex = ~VertexId{0};

// Why a rank's compute lane is idle. The first four apply until the other rank has computed what this one waits for;
// from then until it arrives, the cause is `link`.
enum class IdleCause : std::uint8_t {
  warm_up,    // before the rank's first backward: the pipeline is still filling
  drain,      // after the rank's last forward, until no rank has an op of the batch left
  sender,     // between those: the rank it waits for has not reached that op yet
  slice,      // the same, for the next slice of the microbatch that it has started
  link,       // at any time: the transfer it waits for is queued, on the wire, or arriving
  optimizer,  // reductions, norm and steps: after the last op of the batch, or before a step within the list
  host,       // a copy of activations to host memory or back, on which it depends, has not ended
  other,      // all inputs of the op were available (measured timelines only: launch and host time)
};
inline constexpr int kNumIdleCauses = 8;
inline constexpr std::array<std::string_view, kNumIdleCauses> kIdleCauseNames = {
    "warm_up", "drain", "sender", "slice", "link", "optimizer", "host", "other"};

struct IdleInterval {
  Duration start{};
  Duration end{};
  std::int32_t rank = 0;
  std::int32_t from_rank = -1;     // the rank it waits for; -1: none in particular
  VertexId next = kNoVertex;       // the next vertex of the rank; none after its last
  VertexId waits_for = kNoVertex;  // the op of `from_rank`; for `link` the transfer; for `optimizer` the
                                   // collective, for `host` the copy
  IdleCause cause = IdleCause::other;
};

using IdleByCause = std::array<Duration, kNumIdleCauses>;

// Returns every interval between time 0 and the makespan in which a compute lane is idle, rank by rank in the order of
// time. The intervals of a rank are disjoint and not empty, and their sum is exactly makespan - busy. Precondition:
// `timeline` respects the graph's edges.
std::vector<IdleInterval> idle_intervals(const OpGraph& graph, const Timeline& timeline);

// Returns the sums by rank; each is exactly makespan - busy of Metrics. Does not build a list.
std::vector<IdleByCause> idle_by_cause(const OpGraph& graph, const Timeline& timeline);

// What other ranks waited for in the end: a rank that was working, or transfers between two ranks.
struct IdleRoot {
  std::int32_t rank = -1;
  std::int32_t peer = -1;  // of a link, the higher rank; otherwise -1
  bool operator==(const IdleRoot&) const = default;
  bool operator<(const IdleRoot& other) const { return std::pair(rank, peer) < std::pair(other.rank, other.peer); }
};
std::string to_string(const IdleRoot& root);  // "rank 2", "link 0-1"

// The part of an idle interval before `next` (none: after the last op of the rank) that has one root.
struct RootedIdle {
  IdleRoot root;
  Duration idle{};
  VertexId next = kNoVertex;
};

// Returns by vertex the root of a wait for it: its rank, if that was busy until it started, otherwise that of what it
// waited for. `same_as` (empty: none) has by vertex an earlier one whose root it has, or kNoVertex.
std::vector<IdleRoot> roots_of_starts(const OpGraph& graph, const Timeline& timeline,
                                      std::span<const VertexId> same_as = {});

// Returns the parts of all idle intervals with their roots. A wait for a transfer has its link as the root. A wait for
// an op has the root of that op: its rank, if that was busy until the op started; otherwise the root of the larger part
// of the wait before it. After its last op, a rank waits for the op that ends last. Waits for reductions, norms and
// optimizer steps, and idle time without a wait, have no root and are left out. `same_as` as above.
std::vector<RootedIdle> idle_roots(const OpGraph& graph, const Timeline& timeline,
                                   std::span<const VertexId> same_as = {});

// Returns their sums by root, the longest first; `next` is not set.
std::vector<RootedIdle> idle_by_root(const OpGraph& graph, const Timeline& timeline);
std::vector<RootedIdle> by_length(const std::map<IdleRoot, Duration>& sums);

// Returns the need of `v` that was satisfied last, and when: the first of several (data before order); kNoVertex
// without needs. A transfer satisfies its reader when it arrives, and the next transfer of its lane when it leaves the
// lane.
struct LastNeed {
  VertexId vertex = kNoVertex;
  Duration met{};
};
LastNeed last_need(const OpGraph& graph, const Timeline& timeline, VertexId v);

}  // namespace sluice::model
