#pragma once

#include "model/graph/op_graph_data.h"

namespace sluice::model {

// Asks `footprint` for the bytes of every stage and slice; zeros without one. Throws InputError if what a rank could
// hold of them passes what 64 bits can count.
void fill_bytes(const Schedule& schedule, const Footprint* footprint, OpGraph::Data& data);

// What a collective of `stage` moves, once the bytes are filled in; without a footprint, of a tied embedding nothing.
std::int64_t collective_bytes(const OpGraph::Data& data, CollectiveKind kind, int stage, const Footprint* footprint);

}  // namespace sluice::model
