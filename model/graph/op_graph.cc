#include "model/graph/op_graph.h"

#include <fmt/format.h>

#include "model/graph/offload.h"
#include "model/graph/op_graph_data.h"

namespace sluice::model {

OpGraph::OpGraph(std::unique_ptr<Data> data)
    : data_(std::move(data)),
      schedule_(data_->schedule),
      vertices_(data_->vertices),
      lanes_(data_->lanes),
      partners_(data_->partners),
      offsets_(data_->offsets.data()),
      targets_(data_->targets.data()),
      has_bytes_(data_->has_bytes) {}

OpGraph::OpGraph(OpGraph&&) noexcept = default;
OpGraph& OpGraph::operator=(OpGraph&&) noexcept = default;
OpGraph::~OpGraph() = default;

Collective OpGraph::collective(const Vertex& vertex) const {
  const CollectiveRow& row = data_->collectives[vertex.extra];
  return {row.kind, row.stage, row.bytes, row.buckets,
          std::span(data_->collective_ranks).subspan(row.first_rank, row.num_ranks)};
}

const SliceBytes& OpGraph::slice_bytes(int stage, int microbatch, int slice) const {
  const auto shape = static_cast<std::size_t>(schedule_->shape_index(microbatch));
  return data_->slice_bytes[stage * data_->slices_per_stage + data_->shape_offset[shape] + slice];
}

const StageBytes& OpGraph::stage_bytes(int stage) const { return data_->stage_bytes[stage]; }

std::int64_t OpGraph::transfer_bytes(const Vertex& transfer) const {
  if (of_vocabulary(transfer.op)) {
    // Gradients of hidden states to the rank of the last stage; statistics, 12 bytes per token, count as none.
    const Lane& lane = lanes_[transfer.lane];
    const int last = schedule_->num_stages() - 1;
    const bool gradient = (transfer.op == OpKind::S) == (schedule_->vocabulary_barriers() == 1) &&
                          lane.rank != schedule_->rank_of(last, transfer.microbatch);
    return gradient ? slice_bytes(last, transfer.microbatch, transfer.slice).transfer_forward : 0;
  }
  const SliceBytes& bytes = slice_bytes(transfer.stage, transfer.microbatch, transfer.slice);
  return transfer.op == OpKind::F ? bytes.transfer_forward : bytes.transfer_backward;
}

OffloadBytes OpGraph::offload_bytes(const Vertex& offload) const {
  const OffloadBytes all = stored_bytes(slice_bytes(offload.stage, offload.microbatch, offload.slice),
                                        schedule_->num_slices(offload.microbatch));
  const auto part = [&](std::int64_t bytes) {  // bytes x extra / kOffloadUnit, without overflow
    return bytes / kOffloadUnit * offload.extra + bytes % kOffloadUnit * offload.extra / kOffloadUnit;
  };
  return {part(all.activations), part(all.keys_values)};
}

std::string OpGraph::name(VertexId v) const {
  return name(v, [](int microbatch) { return microbatch; });
}

std::string OpGraph::name(VertexId v, const std::function<int(int)>& microbatch_of) const {
  const Vertex& vertex = vertices_[v];
  const auto op_of = [&](const Vertex& x) {
    return to_string(Op{.microbatch = microbatch_of(x.microbatch), .stage = x.stage, .slice = x.slice, .kind = x.op},
                     schedule_->sliced());
  };
  switch (vertex.kind) {
    case VertexKind::compute: return op_of(vertex);
    case VertexKind::joint: return op_of(vertex) + "+" + op_of(joint_partner(vertex));
    case VertexKind::recompute: return "recompute for " + op_of(vertex);
    case VertexKind::transfer: {
      const Lane& lane = lanes_[vertex.lane];
      return fmt::format("send {} {}->{}", op_of(vertex), lane.rank, lane.peer);
    }
    case VertexKind::optimizer: return fmt::format("optimizer(stage {}, step {})", vertex.stage, vertex.microbatch);
    case VertexKind::offload: {
      Vertex forward = vertex;
      forward.op = OpKind::F;
      return (vertex.op == OpKind::F ? "offload " : "reload ") + op_of(forward);
    }
    case VertexKind::collective: {
      const Collective c = collective(vertex);
      const std::string_view kind = name_of(c.kind);
      return c.stage < 0 ? fmt::format("{}(step {})", kind, vertex.microbatch)
                         : fmt::format("{}(stage {}, step {})", kind, c.stage, vertex.microbatch);
    }
  }
  return "?";
}

}  // namespace sluice::model
