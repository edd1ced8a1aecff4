// Public header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/graph/collective_kind.h"
#include "model/graph/footprint.h"
#include "model/schedule/schedule.h"

namespace sluice::model {

using VertexId = std::uint32_t;
using LaneId = std::int32_t;

enum class VertexKind : std::uint8_t {
  compute,     // one op of the schedule
  joint,       // two ops as one block: `op` is the first, OpGraph::joint_partner the second
  recompute,   // recomputation of the activations of a slice, before its B or I
  transfer,    // an activation (op F) or gradient (op B, I) from `stage` to the next or previous stage
  collective,  // see OpGraph::collective
  optimizer,   // the step of one stage on one rank
  offload,     // a copy of what a forward stored: to host memory (op F), or back before its B or I (op B)
};

// Whether vertices of this kind occupy the compute lane of their rank.
constexpr bool on_compute_lane(VertexKind kind) {
  return kind != VertexKind::transfer && kind != VertexKind::collective && kind != VertexKind::offload;
}

// A lane executes one vertex at a time; its vertices run in the order of their ids.
enum class LaneKind : std::uint8_t { compute, collective, link, to_host, from_host };
struct Lane {
  LaneKind kind = LaneKind::compute;
  int rank = 0;   // of a link: the sender
  int peer = -1;  // of a link: the receiver. A link vertex is both the sender's send and the receiver's receive.
};

struct Vertex {
  std::int32_t microbatch = 0;  // of a collective or an optimizer step: the step it belongs to, from 0
  std::int16_t stage = 0;       // of a transfer: the sending stage; of global_norm: -1
  std::int16_t slice = 0;
  OpKind op = OpKind::F;
  VertexKind kind = VertexKind::compute;
  LaneId lane = 0;
  // joint: index of the partner; collective: of its description; transfer: see queue_waits.h; offload: the part that
  // is copied, in units of 1 / kOffloadUnit (offload.h)
  std::uint32_t extra = 0;
};

struct OffloadBytes {
  std::int64_t activations = 0;
  std::int64_t keys_values = 0;  // of whole sequences only: other slices read them
  std::int64_t sum() const { return activations + keys_values; }
};

// What a reduction or gather of a stage moves of its bytes.
enum class Buckets : std::uint8_t {
  all,
  one,   // that which no op of the stage overlaps with: the last one reduced, the first one gathered
  rest,  // the others, beside the op that completes the gradients, or the first one that needs the parameters
};

struct Collective {
  CollectiveKind kind = CollectiveKind::gradient_reduce;
  int stage = -1;
  std::int64_t bytes = 0;
  Buckets buckets = Buckets::all;
  std::span<const int> ranks;  // pipeline ranks whose collective lanes it occupies, ascending
};

// The lowered DAG of a schedule: computations, transfers and collectives with their dependencies, lanes and bytes, but
// no times. Vertices are numbered in a topological order: every vertex has a larger id than what it waits for.
// boost_graph.h makes it a graph of the Boost Graph Library, with edges from a vertex to what it waits for.
class OpGraph {
 public:
  struct Data;  // filled by lowering; op_graph_data.h
  explicit OpGraph(std::unique_ptr<Data> data);
  OpGraph(OpGraph&&) noexcept;
  OpGraph& operator=(OpGraph&&) noexcept;
  ~OpGraph();

  const Schedule& schedule() const { return *schedule_; }  // must outlive the graph
  VertexId size() const { return static_cast<VertexId>(vertices_.size()); }
  std::span<const Vertex> vertices() const { return vertices_; }
  const Vertex& operator[](VertexId v) const { return vertices_[v]; }
  std::int64_t num_edges() const { return static_cast<std::int64_t>(offsets_[vertices_.size()]); }

  // What `v` waits for: data edges first, then order edges (to the previous vertices on its lanes).
  std::span<const VertexId> needs(VertexId v) const {
    return {targets_ + offsets_[v], static_cast<std::size_t>(offsets_[v + 1] - offsets_[v])};
  }

  // Whether need `i` of `v` is the order on its lane: the next transfer of a link waits for the lane, not for the
  // arrival of the one before.
  bool is_order(VertexId v, std::size_t i) const {
    const Vertex& vertex = vertices_[v];
    const bool queued = vertex.kind == VertexKind::transfer && i <= vertex.extra;
    return !queued && vertices_[needs(v)[i]].lane == vertex.lane;
  }

  std::span<const Lane> lanes() const { return lanes_; }
  int rank_of(VertexId v) const { return lanes_[vertices_[v].lane].rank; }
  // Lanes: that of compute on rank r is r, that of collectives num_ranks + r; the links follow by (sender, receiver),
  // then those to and from the host of the ranks that have them.
  LaneId compute_lane(int rank) const { return rank; }
  LaneId collective_lane(int rank) const { return schedule().num_ranks() + rank; }

  const Vertex& joint_partner(const Vertex& joint) const { return partners_[joint.extra]; }
  Collective collective(const Vertex& vertex) const;

  // Returns the bytes that a transfer moves.
  std::int64_t transfer_bytes(const Vertex& transfer) const;
  // Returns the bytes that an offload copies.
  OffloadBytes offload_bytes(const Vertex& offload) const;
  // Returns the bytes of a slice of a stage, and of a stage; zeros if the graph was lowered without a footprint.
  const SliceBytes& slice_bytes(int stage, int microbatch, int slice) const;
  const StageBytes& stage_bytes(int stage) const;
  bool has_bytes() const { return has_bytes_; }

  // Adopts the current sizes of the schedule (Schedule::resize) and the bytes of `footprint`, or zeros. Ops, edges and
  // lanes stay: one graph serves all runs that differ only in sizes. Throws as lowering does for too many bytes.
  void refill(const Footprint* footprint);

  // "F(stage 1, mb 0)", "send F(stage 1, mb 0) 1->2", "optimizer(stage 0)", "gradient reduce(stage 3)", ...
  std::string name(VertexId v) const;
  // The same with the microbatches of ops, but not the steps of collectives and optimizers, replaced.
  std::string name(VertexId v, const std::function<int(int)>& microbatch_of) const;

 private:
  std::unique_ptr<Data> data_;
  const Schedule* schedule_;
  // Views into data_, so that the accessors above can be inline.
  std::span<const Vertex> vertices_;
  std::span<const Lane> lanes_;
  std::span<const Vertex> partners_;
  const std::uint32_t* offsets_;
  const VertexId* targets_;
  bool has_bytes_;
};

}  // namespace sluice::model
