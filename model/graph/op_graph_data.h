#pragma once

#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <vector>

#include "model/graph/op_graph.h"

namespace sluice::model {

// Edges lead from a vertex to what it waits for.
using DependencyGraph = boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, boost::no_property,
                                                           boost::no_property, VertexId, std::uint32_t>;

struct CollectiveRow {
  CollectiveKind kind = CollectiveKind::gradient_reduce;
  int stage = -1;
  std::int64_t bytes = 0;
  std::uint32_t first_rank = 0;  // in collective_ranks
  std::uint32_t num_ranks = 0;
};

// What an OpGraph holds. Included by lowering, and by those who run Boost.Graph algorithms on the dependencies.
struct OpGraph::Data {
  const Schedule* schedule = nullptr;
  std::vector<Vertex> vertices;
  std::vector<Vertex> partners;
  std::vector<Lane> lanes;
  std::vector<CollectiveRow> collectives;
  std::vector<int> collective_ranks;
  std::vector<StageBytes> stage_bytes;     // by stage
  std::vector<SliceBytes> slice_bytes;     // by (stage, shape, slice); see slice_offset
  std::vector<std::int64_t> shape_offset;  // first slice of a shape within a stage's row
  std::int64_t slices_per_stage = 0;       // over all shapes
  bool has_bytes = false;
  DependencyGraph dependencies;
};

const OpGraph::Data& data_of(const OpGraph& graph);
inline const DependencyGraph& dependency_graph(const OpGraph& graph) { return data_of(graph).dependencies; }

}  // namespace sluice::model
