#include "model/graph/fill_bytes.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

constexpr double kMaxBytes = 4e18;

// Upper bounds of what a stage and a slice add to the memory of a rank, in floating point, which does not overflow.
double most_bytes(const StageBytes& bytes, int num_ranks) {
  const double versions = std::max(2, num_ranks);  // of the weights (num_weight_versions)
  return static_cast<double>(bytes.weights) * versions + static_cast<double>(bytes.gradients) +
         2 * static_cast<double>(bytes.accumulated_gradients) + static_cast<double>(bytes.optimizer) +
         static_cast<double>(bytes.scratch);
}

double most_bytes(const SliceBytes& bytes) {
  double sum = 0;
  for (const std::int64_t part :
       {bytes.activations_to_input_gradient, bytes.activations_to_weight_gradient, bytes.gradients_to_weight_gradient,
        bytes.kept, bytes.vocabulary, bytes.keys_values, bytes.keys_values_gradient, bytes.forward_workspace,
        bytes.backward_workspace, bytes.transfer_forward, bytes.transfer_backward}) {
    sum += static_cast<double>(part);
  }
  return sum;
}

}  // namespace

void fill_bytes(const Schedule& schedule, const Footprint* footprint, OpGraph::Data& data) {
  data.has_bytes = footprint != nullptr;
  data.shape_offset.clear();
  data.slices_per_stage = 0;
  for (const MicrobatchShape& shape : schedule.shapes()) {
    data.shape_offset.push_back(data.slices_per_stage);
    data.slices_per_stage += shape.num_slices();
  }
  data.stage_bytes.assign(schedule.num_stages(), {});
  data.slice_bytes.assign(schedule.num_stages() * data.slices_per_stage, {});
  if (footprint == nullptr) return;
  std::size_t at = 0;
  double all = 0;  // upper bound for every rank
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    StageBytes& held = data.stage_bytes[stage];
    const int like = footprint->alike(stage);
    const std::size_t back = to_size(stage - like) * to_size(data.slices_per_stage);
    held = back > 0 ? data.stage_bytes[like] : footprint->stage(stage);
    all += most_bytes(held, schedule.num_ranks());
    for (const MicrobatchShape& shape : schedule.shapes()) {
      for (int slice = 0; slice < shape.num_slices(); ++slice) {
        data.slice_bytes[at] = back > 0 ? data.slice_bytes[at - back] : footprint->slice(stage, shape, slice);
        all += most_bytes(data.slice_bytes[at++]) * schedule.total_microbatches();
      }
    }
  }
  if (all > kMaxBytes) {
    throw InputError(fmt::format("{}: up to {:.2g} bytes of memory: more than fit in 64 bits", schedule.family(), all));
  }
}

std::int64_t collective_bytes(const OpGraph::Data& data, CollectiveKind kind, int stage, const Footprint* footprint,
                              Buckets buckets) {
  const auto part = [&](std::int64_t bytes) {
    const std::int64_t one = bytes / std::max(1, data.stage_bytes[stage].buckets);
    return buckets == Buckets::all ? bytes : buckets == Buckets::one ? one : bytes - one;
  };
  switch (kind) {
    case CollectiveKind::gradient_reduce:
    case CollectiveKind::replica_reduce: return part(data.stage_bytes[stage].reduced);
    case CollectiveKind::parameter_gather: return part(data.stage_bytes[stage].gathered);
    case CollectiveKind::tied_embedding: return footprint == nullptr ? 0 : footprint->tied_embedding_bytes();
    case CollectiveKind::global_norm: return 4;
  }
  return 0;
}

void OpGraph::refill(const Footprint* footprint) {
  fill_bytes(*schedule_, footprint, *data_);
  for (CollectiveRow& row : data_->collectives)
    row.bytes = collective_bytes(*data_, row.kind, row.stage, footprint, row.buckets);
  has_bytes_ = data_->has_bytes;
}

}  // namespace sluice::model
