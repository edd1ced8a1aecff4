#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "model/graph/op_graph.h"

namespace sluice::exec {

inline constexpr int kNone = -1;

// One op of the schedule on a rank: a compute vertex, or one half of a joint vertex.
struct OpPlan {
  Vertex op;
  int chunk = 0;
  std::int64_t unit = 0;
  int receive = kNone;          // of RankPlan::receives: the message with its input
  int input_buffer = kNone;     // boundary buffer of its input (also from a stage of the same rank)
  int output_buffer = kNone;    // boundary buffer of its output; none at the ends of the model
  int busy_send = kNone;        // of RankPlan::sends: must be done before the output buffer is written
  int weight_version = 0;       // optimizer steps of the run in its weights
  int gradient_buffer = kNone;  // of its chunk; none for F
};

// The next step of the compute thread of a rank.
struct PlannedStep {
  enum class Kind : std::uint8_t { op, send, optimizer };
  Kind kind = Kind::op;
  VertexId vertex = 0;
  VertexId recompute = 0;  // op: the recompute vertex before it, if `recomputes`
  bool recomputes = false;
  int num_ops = 1;                  // op: 2 for a joint vertex
  bool woven = false;               // op: the parts of both ops interleave (RunSpec::weave)
  std::array<OpPlan, 2> ops;        // op
  int send = kNone;                 // send
  int chunk = 0;                    // optimizer
  int step = 0;                     // optimizer: step of the graph, from 0
  int gradient_buffer = kNone;      // optimizer
  std::vector<int> waits_for;       // of RankPlan::collectives
  std::vector<int> waits_for_sent;  // of RankPlan::sends that must have arrived (blocking transfers)
  std::vector<int> posts;           // of RankPlan::receives: their buffers are free once this step is done
};

struct PlannedMessage {
  VertexId vertex = 0;  // the transfer
  int peer = 0;         // pipeline rank
  int buffer = 0;       // boundary buffer
  std::int64_t bytes = 0;
};

struct PlannedCollective {
  VertexId vertex = 0;
  CollectiveKind kind = CollectiveKind::gradient_reduce;
  int stage = -1;
  int step = 0;
  std::vector<int> ranks;             // pipeline ranks, ascending
  VertexId after = 0;                 // the compute thread of the rank must have completed all vertices up to this one
  bool after_any = false;             // whether `after` is set
  std::vector<int> gradient_buffers;  // by chunk: buffer of the gradients of this step
};

// Offsets of the blocks of a slice in the arena.
struct UnitBlocks {
  std::int64_t to_input_gradient = 0;
  std::int64_t to_weight_gradient = 0;
  std::int64_t output_gradients = 0;
  // Of all slices of the microbatch; set in its first slice.
  std::int64_t keys_values = 0;
  std::int64_t keys_values_gradient = 0;
};

// Everything that one pipeline rank does in a run of an OpGraph, in the order of the graph, and where all data of
// limited lifetime lies. Planned before the run, so that a run makes no decision and no allocation.
//
// Boundary buffers hold what is transferred between stages. The buffer of a receive is guaranteed to be free when its
// sender begins to send: the previous content was read by an op that precedes the send in the graph.
struct RankPlan {
  int rank = 0;
  std::vector<PlannedStep> steps;
  std::vector<PlannedMessage> sends;
  std::vector<PlannedMessage> receives;
  std::vector<int> first_posts;  // receives whose buffers are free from the beginning
  std::vector<PlannedCollective> collectives;

  std::vector<std::int64_t> buffer_bytes;  // of each boundary buffer
  std::vector<char> buffer_receives;       // by boundary buffer: whether it belongs to a receive
  std::vector<int> weight_versions;        // by chunk
  std::vector<int> gradient_buffers;       // by chunk

  // By chunk and unit; offsets into the part of the arena that ops allocate from.
  std::vector<UnitBlocks> blocks;
  std::int64_t blocks_bytes = 0;               // size of that part
  std::int64_t most_held_bytes = 0;            // maximum that ops hold of it
  std::vector<std::int64_t> held_after_start;  // by step: bytes held after its allocations

  const UnitBlocks& blocks_of(int chunk, std::int64_t unit, std::int64_t num_units) const {
    return blocks[chunk * num_units + unit];
  }
  bool has_woven_blocks() const {
    return std::any_of(steps.begin(), steps.end(), [](const PlannedStep& step) { return step.woven; });
  }
};

// Plans all pipeline ranks. Precondition: the graph has bytes.
std::vector<RankPlan> plan_ranks(const OpGraph& graph);

}  // namespace sluice::exec
