#pragma once

#include <iosfwd>

#include "model/graph/op_graph.h"

namespace sluice::model {

// Writes `graph` in GraphViz's DOT language: one box per vertex, one row per lane, arrows from a vertex to those that
// wait for it. Edges that follow from others are left out (transitive reduction); edges between neighbors of a lane
// are dashed. Takes time and bits of the square of the number of vertices: throws InputError above 20,000.
void write_dot(std::ostream& out, const OpGraph& graph);

}  // namespace sluice::model
