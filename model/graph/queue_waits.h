#pragma once

#include "model/graph/host_program.h"
#include "model/graph/op_graph.h"

namespace sluice::model {

// Adds to a lowered schedule with communication what its transfers wait for in the queues of communicators, as
// check_communicators does: a transfer starts when its send and its receive have started, and each of these after the
// items before it on its queues, after its data, and as options.wait says. Vertices are renumbered. A transfer's
// Vertex::extra is the number of its additional needs, which follow the first one.
// Throws ScheduleError with the cycle if the ranks hang, InputError for a wrong mapping.
void add_queue_waits(OpGraph::Data& graph, const CommunicatorOptions& options);

}  // namespace sluice::model
