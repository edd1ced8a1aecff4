#pragma once

#include <span>

#include "exec/plan/rank_plan.h"
#include "model/graph/op_graph.h"

namespace sluice::exec {

// Checks before a run that the plans of all ranks run to their end, and that messages keep their order. Model: nothing
// is buffered, so that a message moves when both ends have posted it; the messages of an edge move in the order of the
// sends, which must be the order of the receives; each rank runs its items one after the other, in the order of the
// graph, and waits at a collective for all of its ranks. (A transport may do better: NCCL waits on the device while the
// host goes ahead.) Throws ScheduleError with both orders of an edge if they differ, or with the cycle of ranks that
// wait for each other. Linear in steps and messages.
void check_message_order(const OpGraph& graph, std::span<const RankPlan> ranks);

}  // namespace sluice::exec
