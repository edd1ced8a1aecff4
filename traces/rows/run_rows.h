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
#include "traces/rows/part_rows.h"

namespace sluice::traces {

// Places the transfers of a graph as traces show them. A transfer shorter than 1 ns is drawn 1 ns long; transfers that
// would then overlap on a track are drawn one after another. Both ends of a transfer are drawn with the same length.
class TransferDrawing {
 public:
  TransferDrawing(const OpGraph& graph, const Timeline& timeline)
      : graph_(graph), timeline_(timeline), drawn_until_(2 * graph.lanes().size(), Duration::zero()) {}

  struct Drawn {
    Duration start{};    // at the sender
    Duration end{};      // at the sender
    Duration arrives{};  // start at the receiver, where it is as long
  };
  // To be called once per transfer, in the order of their ids.
  Drawn draw(VertexId transfer);

 private:
  const OpGraph& graph_;
  const Timeline& timeline_;
  std::vector<Duration> drawn_until_;  // by link, one for each of the two tracks that it may use between two ranks
};

enum class RowKind : std::uint8_t { F, B, I, W, S, T, joint, recompute, transfer, collective, optimizer, offload };
inline constexpr int kNumRowKinds = 12;
inline constexpr std::array<std::string_view, kNumRowKinds> kRowKindNames = {
    "F", "B", "I", "W", "S", "T", "F+B", "recompute", "transfer", "collective", "optimizer", "offload"};

// Whether rows of this kind occupy their rank's compute lane; the others run concurrently.
constexpr bool occupies_rank(RowKind kind) {
  return kind != RowKind::transfer && kind != RowKind::collective && kind != RowKind::offload;
}
constexpr RowKind row_kind(OpKind kind) { return static_cast<RowKind>(kind); }
// The row kind of a graph vertex.
RowKind kind_of(const Vertex& vertex);

struct RowOp {
  std::int32_t microbatch = 0;  // counted over all batches; for a collective or optimizer step: the step, from 0
  std::int16_t stage = 0;       // for a transfer: the sending stage; for a global norm: -1
  std::int16_t slice = 0;
  OpKind kind = OpKind::F;

  friend bool operator==(const RowOp&, const RowOp&) = default;
  friend bool operator<(const RowOp& a, const RowOp& b) {
    return std::tie(a.microbatch, a.stage, a.slice, a.kind) < std::tie(b.microbatch, b.stage, b.slice, b.kind);
  }
};

inline constexpr std::int32_t kNoRow = -1;

// One row of a run: an op, transfer, collective or optimizer step of an OpGraph or of a trace file.
struct OpRow {
  RowKind kind = RowKind::F;
  CollectiveKind collective = CollectiveKind::gradient_reduce;
  std::int16_t rank = 0;   // for a transfer: the sender; a collective has one row per participating rank
  std::int16_t peer = -1;  // for a transfer: the receiver
  RowOp op;                // for a transfer: the producer, F of activations, B or I of gradients; for an offload: F to
                           // the host, B back
  RowOp partner;           // for a joint block: its second op
  Duration start{};
  Duration end{};
  Duration latency{};          // for a transfer: time from its end to its arrival
  std::int64_t bytes = 0;      // for a transfer, a collective or an offload
  std::int32_t need = kNoRow;  // the dependency that ended last, if known
};

// The key by which rows of two runs are paired. Excludes times and bytes, and the rank of rows that occur once per run.
struct RowIdentity {
  RowKind kind = RowKind::F;
  CollectiveKind collective = CollectiveKind::gradient_reduce;
  std::int16_t rank = 0;  // for collectives and optimizer steps
  RowOp op;               // for a joint block: its F
  RowOp partner;

  friend bool operator==(const RowIdentity&, const RowIdentity&) = default;
  friend bool operator<(const RowIdentity& a, const RowIdentity& b) {
    return std::tie(a.kind, a.collective, a.rank, a.op, a.partner) <
           std::tie(b.kind, b.collective, b.rank, b.op, b.partner);
  }
};
RowIdentity identity_of(const OpRow& row);

// Returns the name of a row in the format of OpGraph::name: "F(stage 1, mb 0)", with `sliced` "F(stage 1, mb 0, slice
// 2)", "send F(stage 1, mb 0) 1->2", "optimizer(stage 0, step 0)", "gradient reduce(stage 3, step 0)".
std::string name_of(const OpRow& row, bool sliced);

// Returns the row of a vertex without times, need and bytes. For a collective: the row of its first rank.
OpRow row_of(const OpGraph& graph, VertexId v);

// One run as a list of rows. Times are relative to the first start.
struct RunRows {
  int num_ranks = 0;
  bool sliced = false;
  std::vector<OpRow> rows;
  std::vector<RankMemory> memory;  // by rank; empty if unknown
  std::vector<IdleByCause> idle;   // by rank; empty if unknown
  // Of layers with experts, within each rank and lane in time order; empty if unknown. Those read from a trace have no
  // vertex and layer.
  std::vector<PartRow> parts;
};

// Converts a graph and its timeline to rows, in the order of vertex ids. Transfers have the times that traces show
// (TransferDrawing), so that a trace that is read back has the same rows. Causes of idle time are exact where
// `timeline` respects the graph's edges.
RunRows rows_of(const OpGraph& graph, const Timeline& timeline, std::span<const RankMemory> memory = {});

}  // namespace sluice::traces
