#pragma once

#include <vector>

#include "model/graph/op_graph.h"

namespace sluice::model {

struct CollectiveRow {
  CollectiveKind kind = CollectiveKind::gradient_reduce;
  int stage = -1;
  std::int64_t bytes = 0;
  Buckets buckets = Buckets::all;
  std::uint32_t first_rank = 0;  // in collective_ranks
  std::uint32_t num_ranks = 0;
};

// The contents of an OpGraph, as lowering fills them. The needs of vertex v are
// targets[offsets[v]] to targets[offsets[v + 1] - 1].
struct OpGraph::Data {
  const Schedule* schedule = nullptr;
  std::vector<Vertex> vertices;
  std::vector<std::uint32_t> offsets;  // by vertex, and one more
  std::vector<VertexId> targets;
  std::vector<Vertex> partners;
  std::vector<Lane> lanes;
  std::vector<CollectiveRow> collectives;
  std::vector<int> collective_ranks;
  std::vector<StageBytes> stage_bytes;     // by stage
  std::vector<SliceBytes> slice_bytes;     // by (stage, shape, slice); see shape_offset
  std::vector<std::int64_t> shape_offset;  // first slice of a shape within a stage's row
  std::int64_t slices_per_stage = 0;       // over all shapes
  bool has_bytes = false;
};

}  // namespace sluice::model
