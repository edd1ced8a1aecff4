#pragma once

#include "model/graph/op_graph.h"
#include "model/input/files.h"
#include "model/timeline/timeline.h"

namespace sluice::traces {

// Writes a CSV with a row for every vertex of the graph, in the order of its ids (causes before effects):
//   rank        of a transfer the sender, of a collective the first that takes part
//   peer        of a transfer the receiver
//   what        F, B, I, W, F+B (a joint block), recompute, send, collective's name, optimizer
//   stage, chunk, microbatch, slice; of a joint block those of its first op
//   start_s, end_s, slack_s, critical (1 on the critical path), bytes (sent or reduced)
//   waited_for  the need that was met last
void write_op_table(const ByteSink& sink, const OpGraph& graph, const Timeline& timeline);

}  // namespace sluice::traces
