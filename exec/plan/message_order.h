#pragma once

#include <span>

#include "exec/plan/rank_plan.h"
#include "model/graph/op_graph.h"

namespace sluice::exec {

// Shows, before anything runs, that ranks which do what their plans say come to their end, and in which order messages
// go: nothing is buffered, so that a message moves when both ends are at it; those of an edge move in the order in
// which the sender sends them, which must be that in which the receiver takes them; each rank does one thing after the
// other, in the order of the graph, and waits at a collective for all of its members. (A transport may do better: NCCL
// waits on the device, and the host goes ahead.) Throws ScheduleError with the two orders of an edge where they differ,
// or with the ring of ranks that wait for each other. Linear in steps and messages.
void prove_message_order(const OpGraph& graph, std::span<const RankPlan> ranks);

}  // namespace sluice::exec
