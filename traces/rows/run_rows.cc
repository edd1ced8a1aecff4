#include "traces/rows/run_rows.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::traces {
namespace {

RowOp op_of(const Vertex& vertex) { return {vertex.microbatch, vertex.stage, vertex.slice, vertex.op}; }

std::string text_of(const RowOp& op, bool sliced) {
  return to_string(Op{.microbatch = op.microbatch, .stage = op.stage, .slice = op.slice, .kind = op.kind}, sliced);
}

}  // namespace

TransferDrawing::Drawn TransferDrawing::draw(VertexId transfer) {
  const Vertex& op = graph_[transfer];
  const auto lane = static_cast<std::size_t>(op.lane);
  // Between two ranks a link serves two tracks at each end, one per direction.
  const bool gradient_track = graph_.schedule().num_ranks() == 2 && op.op != OpKind::F;
  Duration& drawn_until = drawn_until_[2 * lane + (gradient_track ? 1 : 0)];
  const Duration start = std::max(timeline_.start[transfer], drawn_until);
  drawn_until = std::max(timeline_.end[transfer], start + Duration{1});
  return {start, drawn_until, start + timeline_.lane_latency[lane]};
}

RowKind kind_of(const Vertex& vertex) {
  switch (vertex.kind) {
    case VertexKind::compute: return row_kind(vertex.op);
    case VertexKind::joint: return RowKind::joint;
    case VertexKind::recompute: return RowKind::recompute;
    case VertexKind::transfer: return RowKind::transfer;
    case VertexKind::collective: return RowKind::collective;
    case VertexKind::optimizer: return RowKind::optimizer;
    case VertexKind::offload: return RowKind::offload;
  }
  return RowKind::F;
}

RowIdentity identity_of(const OpRow& row) {
  RowIdentity identity{.kind = row.kind, .op = row.op};
  switch (row.kind) {
    case RowKind::joint:
      identity.partner = row.partner;
      if (identity.op.kind != OpKind::F) std::swap(identity.op, identity.partner);
      break;
    case RowKind::recompute:
    case RowKind::optimizer:
      identity.op.kind = OpKind::F;
      break;  // the op that it precedes is not part of the identity
    case RowKind::collective:
      identity.op.kind = OpKind::F;
      identity.collective = row.collective;
      break;
    default: break;
  }
  if (row.kind == RowKind::collective || row.kind == RowKind::optimizer) identity.rank = row.rank;
  if (row.kind == RowKind::transfer) identity.rank = row.peer;  // one result may be sent to several ranks
  return identity;
}

std::string name_of(const OpRow& row, bool sliced) {
  switch (row.kind) {
    case RowKind::joint: return text_of(row.op, sliced) + "+" + text_of(row.partner, sliced);
    case RowKind::recompute: return "recompute for " + text_of(row.op, sliced);
    case RowKind::transfer: return fmt::format("send {} {}->{}", text_of(row.op, sliced), row.rank, row.peer);
    case RowKind::offload: {
      RowOp forward = row.op;
      forward.kind = OpKind::F;
      return (row.op.kind == OpKind::F ? "offload " : "reload ") + text_of(forward, sliced);
    }
    case RowKind::optimizer: return fmt::format("optimizer(stage {}, step {})", row.op.stage, row.op.microbatch);
    case RowKind::collective: {
      const std::string_view kind = name_of(row.collective);
      if (row.op.stage < 0) return fmt::format("{}(step {})", kind, row.op.microbatch);
      return fmt::format("{}(stage {}, step {})", kind, row.op.stage, row.op.microbatch);
    }
    default: return text_of(row.op, sliced);
  }
}

OpRow row_of(const OpGraph& graph, VertexId v) {
  const Vertex& vertex = graph[v];
  OpRow row{.kind = kind_of(vertex), .rank = static_cast<std::int16_t>(graph.rank_of(v)), .op = op_of(vertex)};
  switch (vertex.kind) {
    case VertexKind::joint: row.partner = op_of(graph.joint_partner(vertex)); break;
    case VertexKind::transfer: row.peer = static_cast<std::int16_t>(graph.lanes()[vertex.lane].peer); break;
    case VertexKind::collective: {
      const Collective collective = graph.collective(vertex);
      row.collective = collective.kind;
      row.op.stage = static_cast<std::int16_t>(collective.stage);
      row.rank = static_cast<std::int16_t>(collective.ranks.front());
      break;
    }
    default: break;
  }
  return row;
}

RunRows rows_of(const OpGraph& graph, const Timeline& timeline, std::span<const RankMemory> memory) {
  RunRows run{.num_ranks = graph.schedule().num_ranks(), .sliced = graph.schedule().sliced()};
  run.memory.assign(memory.begin(), memory.end());
  run.idle = idle_by_cause(graph, timeline);
  run.rows.reserve(graph.size());
  TransferDrawing transfers(graph, timeline);
  std::vector<std::int32_t> first_row(graph.size());
  for (VertexId v = 0; v < graph.size(); ++v) {
    first_row[v] = static_cast<std::int32_t>(run.rows.size());
    OpRow row = row_of(graph, v);
    row.start = timeline.start[v];
    row.end = timeline.end[v];
    if (const VertexId need = last_need(graph, timeline, v).vertex; need != kNoVertex) row.need = first_row[need];
    if (row.kind == RowKind::transfer) {
      const auto [start, end, arrives] = transfers.draw(v);
      row.start = start;
      row.end = end;
      row.latency = arrives - start;
      row.bytes = graph.transfer_bytes(graph[v]);
    } else if (row.kind == RowKind::offload) {
      row.bytes = graph.offload_bytes(graph[v]).sum();
    } else if (row.kind == RowKind::collective) {
      const Collective collective = graph.collective(graph[v]);
      row.bytes = collective.bytes;
      for (const int rank : collective.ranks) {
        row.rank = static_cast<std::int16_t>(rank);
        run.rows.push_back(row);
      }
      continue;
    }
    run.rows.push_back(row);
  }
  return run;
}

}  // namespace sluice::traces
