#pragma once

#include "model/graph/op_graph_data.h"

namespace sluice::model {

// Fills in the bytes of every stage and slice from `footprint`, or zeros without one. Throws InputError if the memory
// of a rank could exceed 64 bits.
void fill_bytes(const Schedule& schedule, const Footprint* footprint, OpGraph::Data& data);

// Returns the bytes that a collective of `stage` moves, once the stages' bytes are filled in; 0 for a tied embedding
// without a footprint.
std::int64_t collective_bytes(const OpGraph::Data& data, CollectiveKind kind, int stage, const Footprint* footprint,
                              Buckets buckets = Buckets::all);

}  // namespace sluice::model
