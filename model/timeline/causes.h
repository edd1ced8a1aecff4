// Public header.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/graph/op_graph.h"
#include "model/timeline/timeline.h"

namespace sluice::model {

inline constexpr VertexId kNoVertex = ~VertexId{0};

// Why a rank's compute lane stands idle. Until the other rank has made what this one waits for it is one of the first
// four; from then until it is there, `link`.
enum class IdleCause : std::uint8_t {
  warm_up,    // before the rank's first backward: the pipeline is still filling
  drain,      // after the rank's last forward, until no rank has an op of the batch left
  sender,     // in between: the rank it waits for has not come to that op yet
  slice,      // in between, the same, for the next slice of the microbatch that it is in the middle of
  link,       // at any time: the transfer it waits for queues, is on the wire, or on its way
  optimizer,  // reductions, norm and steps: after the last op of the batch, or before a step within the list
  other,      // everything that the op needs was there (measured timelines only: launch and host time)
};
inline constexpr int kNumIdleCauses = 7;
inline constexpr std::array<std::string_view, kNumIdleCauses> kIdleCauseNames = {
    "warm_up", "drain", "sender", "slice", "link", "optimizer", "other"};

struct IdleInterval {
  Duration start{};
  Duration end{};
  std::int32_t rank = 0;
  std::int32_t from_rank = -1;     // whom it waits for; -1: nobody in particular
  VertexId next = kNoVertex;       // what the rank runs afterwards; none after its last
  VertexId waits_for = kNoVertex;  // the op of `from_rank`; for `link` the transfer; for `optimizer` the collective
  IdleCause cause = IdleCause::other;
};

using IdleByCause = std::array<Duration, kNumIdleCauses>;

// Every stretch between time 0 and the makespan in which a compute lane does nothing, rank by rank in the order of
// time. The intervals of a rank are disjoint, not empty, and together its makespan - busy exactly. Precondition:
// `timeline` respects the graph's edges.
std::vector<IdleInterval> idle_intervals(const OpGraph& graph, const Timeline& timeline);

// Sums by rank; each adds up to makespan - busy of Metrics exactly. No list is made.
std::vector<IdleByCause> idle_by_cause(const OpGraph& graph, const Timeline& timeline);

// The need of `v` that was met last, and when: of several, the one named first (data before order). kNoVertex without
// needs. A transfer is met when it has arrived; by the next on its own lane, when it has left.
struct LastNeed {
  VertexId vertex = kNoVertex;
  Duration met{};
};
LastNeed last_need(const OpGraph& graph, const Timeline& timeline, VertexId v);

}  // namespace sluice::model
