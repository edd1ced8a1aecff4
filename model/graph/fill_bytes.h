#pragma once

#include "model/graph/op_graph_data.h"

namespace sluice {

// Asks `footprint` for the bytes of every stage and slice; zeros without one. Throws InputError if what a rank could
// hold of them passes what 64 bits can count.
void fill_bytes(const Schedule& schedule, const Footprint* footprint, OpGraph::Data& data);

}  // namespace sluice
