#pragma once

#include "model/graph/op_graph.h"
#include "model/input/files.h"
#include "model/timeline/timeline.h"

namespace sluice::traces {

// Writes a CSV file with one row per vertex of the graph, in the order of ids (dependencies first):
//   rank        for a transfer: the sender; for a collective: the first participating rank
//   peer        for a transfer: the receiver
//   what        F, B, I, W, F+B (a joint block), recompute, send, collective's name, optimizer
//   stage, chunk, microbatch, slice; for a joint block those of its first op
//   start_s, end_s, slack_s, critical (1 on the critical path), bytes (sent or reduced)
//   waited_for  the dependency that ended last
void write_op_table(const ByteSink& sink, const OpGraph& graph, const Timeline& timeline);

}  // namespace sluice::traces
