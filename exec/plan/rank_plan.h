#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "model/graph/op_graph.h"

namespace sluice::exec {

inline constexpr int kNone = -1;

// One op of the schedule on a rank: a compute vertex, or half of a joint one.
struct OpPlan {
  Vertex op;
  int chunk = 0;
  std::int64_t unit = 0;
  int receive = kNone;          // of RankPlan::receives: what it reads comes from another rank,
  int input_buffer = kNone;     // and is in this boundary buffer (also of a stage of the same rank)
  int output_buffer = kNone;    // where what it makes goes; none at the ends of the model
  int busy_send = kNone;        // of RankPlan::sends: must be done before the output buffer is written
  int weight_version = 0;       // steps of the run that its weights have behind them
  int gradient_buffer = kNone;  // of its chunk; not of F
};

// What a rank's compute thread does next.
struct PlannedStep {
  enum class Kind : std::uint8_t { op, send, optimizer };
  Kind kind = Kind::op;
  VertexId vertex = 0;
  VertexId recompute = 0;  // op: the recompute vertex before it, if `recomputes`
  bool recomputes = false;
  int num_ops = 1;                  // op: 2 of a joint block
  std::array<OpPlan, 2> ops;        // op
  int send = kNone;                 // send
  int chunk = 0;                    // optimizer
  int step = 0;                     // optimizer: of the graph, from 0
  int gradient_buffer = kNone;      // optimizer
  std::vector<int> waits_for;       // of RankPlan::collectives
  std::vector<int> waits_for_sent;  // of sends that must have arrived (blocking transfers)
  std::vector<int> posts;           // of receives, whose buffers are free once this step is done
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
  VertexId after = 0;                 // the rank's own compute thread must have done all up to this vertex
  bool after_any = false;             // whether there is such a vertex
  std::vector<int> gradient_buffers;  // by chunk: the buffer of this step's gradients
};

// Where a slice's blocks lie in the arena.
struct UnitBlocks {
  std::int64_t to_input_gradient = 0;
  std::int64_t to_weight_gradient = 0;
  std::int64_t output_gradients = 0;
  std::int64_t keys_values = 0;
  std::int64_t keys_values_gradient = 0;
};

// Everything that one pipeline rank does in a run of an OpGraph, in the graph's order, and where everything lies that
// comes and goes; worked out before the run, so that a run decides and allocates nothing.
//
// Boundary buffers hold what goes between stages. A receive has a buffer that is certainly free when its sender begins
// to send: whoever was in it has been read by an op that the sent one follows in the graph.
struct RankPlan {
  int rank = 0;
  std::vector<PlannedStep> steps;
  std::vector<PlannedMessage> sends;
  std::vector<PlannedMessage> receives;
  std::vector<int> first_posts;  // receives whose buffers are free from the start
  std::vector<PlannedCollective> collectives;

  std::vector<std::int64_t> buffer_bytes;  // of each boundary buffer
  std::vector<char> buffer_receives;       // whether it is one of receives
  std::vector<int> weight_versions;        // by chunk
  std::vector<int> gradient_buffers;       // by chunk

  // By chunk and unit; offsets into the part of the arena that ops take and give.
  std::vector<UnitBlocks> blocks;
  std::int64_t blocks_bytes = 0;               // what that part must hold
  std::int64_t most_held_bytes = 0;            // the most that ops hold of it at once
  std::vector<std::int64_t> held_after_start;  // by step: bytes held once it has taken what it takes

  const UnitBlocks& blocks_of(int chunk, std::int64_t unit, std::int64_t num_units) const {
    return blocks[chunk * num_units + unit];
  }
};

// Precondition: the graph has bytes.
std::vector<RankPlan> plan_ranks(const OpGraph& graph);

}  // namespace sluice::exec
