#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "model/graph/op_graph.h"
#include "model/timeline/causes.h"
#include "model/timeline/memory.h"
#include "model/timeline/timeline.h"

namespace sluice::traces {

enum class RowKind : std::uint8_t { F, B, I, W, joint, recompute, transfer, collective, optimizer };
inline constexpr int kNumRowKinds = 9;
inline constexpr std::array<std::string_view, kNumRowKinds> kRowKindNames = {
    "F", "B", "I", "W", "F+B", "recompute", "transfer", "collective", "optimizer"};

// Whether rows of this kind keep their rank busy; the others run beside them.
constexpr bool occupies_rank(RowKind kind) { return kind != RowKind::transfer && kind != RowKind::collective; }
constexpr RowKind row_kind(OpKind kind) { return static_cast<RowKind>(kind); }
// What a vertex of a graph is as a row.
RowKind kind_of(const Vertex& vertex);

struct RowOp {
  std::int32_t microbatch = 0;  // over all batches; of a collective or an optimizer step: the step, from 0
  std::int16_t stage = 0;       // of a transfer: the sending one; of a global norm: -1
  std::int16_t slice = 0;
  OpKind kind = OpKind::F;

  friend bool operator==(const RowOp&, const RowOp&) = default;
  friend bool operator<(const RowOp& a, const RowOp& b) {
    return std::tie(a.microbatch, a.stage, a.slice, a.kind) < std::tie(b.microbatch, b.stage, b.slice, b.kind);
  }
};

inline constexpr std::int32_t kNoRow = -1;

// One thing that ran, of an OpGraph or of a trace file.
struct OpRow {
  RowKind kind = RowKind::F;
  CollectiveKind collective = CollectiveKind::gradient_reduce;
  std::int16_t rank = 0;   // of a transfer: the sender; a collective has a row for each rank that takes part
  std::int16_t peer = -1;  // of a transfer: the receiver
  RowOp op;                // of a transfer: what is sent, F its activations, B or I its gradients
  RowOp partner;           // of a joint block: its second op
  Duration start{};
  Duration end{};
  Duration latency{};          // of a transfer: it has arrived so long after its end
  std::int64_t bytes = 0;      // of a transfer or a collective
  std::int32_t need = kNoRow;  // the row that it waited for last, where that is known
};

// What rows of two runs are paired by: everything but times, bytes and, where an op can only be in one place, the rank.
struct RowIdentity {
  RowKind kind = RowKind::F;
  CollectiveKind collective = CollectiveKind::gradient_reduce;
  std::int16_t rank = 0;  // of collectives and optimizer steps
  RowOp op;               // of a joint block its F
  RowOp partner;

  friend bool operator==(const RowIdentity&, const RowIdentity&) = default;
  friend bool operator<(const RowIdentity& a, const RowIdentity& b) {
    return std::tie(a.kind, a.collective, a.rank, a.op, a.partner) <
           std::tie(b.kind, b.collective, b.rank, b.op, b.partner);
  }
};
RowIdentity identity_of(const OpRow& row);

// "F(stage 1, mb 0)", with `sliced` "F(stage 1, mb 0, slice 2)"; "send F(stage 1, mb 0) 1->2", "optimizer(stage 0, step
// 0)", "gradient reduce(stage 3, step 0)", as OpGraph::name has it.
std::string name_of(const OpRow& row, bool sliced);

// What a vertex is, without its times, need and bytes; of a collective, the row of its first rank.
OpRow row_of(const OpGraph& graph, VertexId v);

// One run as comparisons see it. Times count from its first start, which is 0.
struct RunRows {
  int num_ranks = 0;
  bool sliced = false;
  std::vector<OpRow> rows;
  std::vector<RankMemory> memory;  // by rank; empty: not known
  std::vector<IdleByCause> idle;   // by rank; empty: not known
};

// Of a graph and its timeline, vertex by vertex in the order of their ids. Transfers are as traces draw them: at least
// 1 ns long, and one after the other where they would overlap on a lane (TransferDrawing), so that a trace that is read
// back has the same rows. Idle time has its causes as far as `timeline` respects the graph's edges.
RunRows rows_of(const OpGraph& graph, const Timeline& timeline, std::span<const RankMemory> memory = {});

}  // namespace sluice::traces
