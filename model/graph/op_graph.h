// Public header.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/cost/cost_model.h"
#include "model/graph/footprint.h"
#include "model/schedule/schedule.h"

namespace sluice::model {

using VertexId = std::uint32_t;
using LaneId = std::int32_t;

enum class VertexKind : std::uint8_t {
  compute,     // one op of the schedule
  joint,       // two ops as one block: `op` of the vertex is the first, OpGraph::joint_partner the second
  recompute,   // the activations of a slice made again, before its B or I
  transfer,    // an activation (op F) or gradient (op B, I) on its way from `stage` to the next or previous one
  collective,  // see OpGraph::collective
  optimizer,   // the step of one stage on one rank
};

// A lane is what can do one thing at a time; vertices of a lane run in the order of their ids.
enum class LaneKind : std::uint8_t { compute, collective, link };
struct Lane {
  LaneKind kind = LaneKind::compute;
  int rank = 0;   // of a link: the sender
  int peer = -1;  // of a link: the receiver. One link vertex is the sender's send and the receiver's receive.
};

struct Vertex {
  std::int32_t microbatch = 0;  // of a collective or an optimizer step: the step it belongs to, from 0
  std::int16_t stage = 0;       // of a transfer: the sending one; of global_norm: -1
  std::int16_t slice = 0;
  OpKind op = OpKind::F;
  VertexKind kind = VertexKind::compute;
  LaneId lane = 0;
  std::uint32_t extra = 0;  // joint: index of the partner; collective: index of its description
};

struct Collective {
  CollectiveKind kind = CollectiveKind::gradient_reduce;
  int stage = -1;
  std::int64_t bytes = 0;
  std::span<const int> ranks;  // pipeline ranks whose collective lane it occupies, ascending
};

// The lowered DAG of a schedule: what is computed, moved and waited for, on which lane, with which bytes; no time.
// Vertices are numbered in a topological order, so that one pass over the ids visits causes before effects.
// Underneath is a Boost.Graph compressed sparse row graph whose out-edges lead from a vertex to what it waits for.
class OpGraph {
 public:
  struct Data;  // filled by lowering; op_graph_data.h
  explicit OpGraph(std::unique_ptr<Data> data);
  OpGraph(OpGraph&&) noexcept;
  OpGraph& operator=(OpGraph&&) noexcept;
  ~OpGraph();

  const Schedule& schedule() const { return *schedule_; }  // outlives the graph
  VertexId size() const { return static_cast<VertexId>(vertices_.size()); }
  std::span<const Vertex> vertices() const { return vertices_; }
  const Vertex& operator[](VertexId v) const { return vertices_[v]; }
  std::int64_t num_edges() const { return static_cast<std::int64_t>(row_[vertices_.size()]); }

  // What `v` waits for: data edges first, the order edges (the vertices before it on its lanes) last.
  std::span<const VertexId> needs(VertexId v) const {
    return {columns_ + row_[v], static_cast<std::size_t>(row_[v + 1] - row_[v])};
  }

  std::span<const Lane> lanes() const { return lanes_; }
  int rank_of(VertexId v) const { return lanes_[vertices_[v].lane].rank; }
  // Lanes: compute of rank r is r, collective of rank r is num_ranks + r, then the links by (sender, receiver).
  LaneId compute_lane(int rank) const { return rank; }
  LaneId collective_lane(int rank) const { return schedule().num_ranks() + rank; }

  const Vertex& joint_partner(const Vertex& joint) const { return partners_[joint.extra]; }
  Collective collective(const Vertex& vertex) const;

  // Bytes that a transfer moves.
  std::int64_t transfer_bytes(const Vertex& transfer) const;
  // Bytes of a slice of a stage, and of a stage itself; zeros where the graph was lowered without a footprint.
  const SliceBytes& slice_bytes(int stage, int microbatch, int slice) const;
  const StageBytes& stage_bytes(int stage) const;
  bool has_bytes() const { return has_bytes_; }

  // Takes the sizes that the schedule has by now (Schedule::resize), and the bytes of `footprint`, or none. Ops, edges
  // and lanes stay: one graph serves all runs that differ in sizes alone. Throws as lowering does for too many bytes.
  void refill(const Footprint* footprint);

  // "F(stage 1, mb 0)", "send F(stage 1, mb 0) 1->2", "optimizer(stage 0)", "gradient reduce(stage 3)", ...
  std::string name(VertexId v) const;

 private:
  friend const Data& data_of(const OpGraph& graph);

  std::unique_ptr<Data> data_;
  const Schedule* schedule_;
  // Views into data_, so that the accessors above are inline.
  std::span<const Vertex> vertices_;
  std::span<const Lane> lanes_;
  std::span<const Vertex> partners_;
  const std::uint32_t* row_;
  const VertexId* columns_;
  bool has_bytes_;
};

}  // namespace sluice::model
