// Public header.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "model/cost/sharing.h"
#include "model/schedule/schedule.h"

namespace sluice::model {

// What a collective of the OpGraph is for.
enum class CollectiveKind : std::uint8_t {
  gradient_reduce,   // data-parallel sum of one stage's gradients
  replica_reduce,    // sum between the two ranks that hold a stage (DualPipe, Chimera)
  tied_embedding,    // sum of the embedding's gradient between first and last stage
  global_norm,       // gradient norm and overflow decision over all ranks
  parameter_gather,  // distributed optimizer: all-gather of the updated parameters
};

constexpr std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::gradient_reduce: return "gradient reduce";
    case CollectiveKind::replica_reduce: return "replica reduce";
    case CollectiveKind::tied_embedding: return "tied embedding";
    case CollectiveKind::global_norm: return "global norm";
    case CollectiveKind::parameter_gather: return "parameter gather";
  }
  return "collective";
}

// Time of a transfer: it occupies its two lanes for `occupied_s`, and arrives `latency_s` after that.
struct TransferTime {
  double occupied_s = 0;
  double latency_s = 0;
};

// Prices the ops of an OpGraph, in seconds. Implementations are immutable. Results must be finite and >= 0;
// pricing throws InputError naming the op otherwise.
class CostModel {
 public:
  virtual ~CostModel() = default;

  // One op of `stage` on slice `slice` of a microbatch of `shape`. B is the whole backward, I and W its parts.
  // Includes tensor-parallel collectives, excludes recomputation.
  virtual double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const = 0;

  // A joint block of an F and a B or I. By default their sum.
  virtual double joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice, OpKind backward,
                         int backward_stage, const MicrobatchShape& backward_shape, int backward_slice) const {
    return compute_s(OpKind::F, forward_stage, forward_shape, forward_slice) +
           compute_s(backward, backward_stage, backward_shape, backward_slice);
  }

  // Recomputation of the activations of one slice before its backward.
  virtual double recompute_s(int /*stage*/, const MicrobatchShape& /*shape*/, int /*slice*/) const { return 0; }

  // A stage, at most `stage`, whose compute_s and recomputation are the same.
  virtual int alike(int stage) const { return stage; }

  // `bytes` from pipeline rank `from` to another, `to`. The latency does not depend on the bytes.
  virtual TransferTime transfer(int from, int to, std::int64_t bytes) const = 0;

  // What `links` share, one entry each, or nothing at all. What a transfer takes alone is `transfer` either way.
  virtual LinkSharing sharing(std::span<const LinkEnds> /*links*/) const { return {}; }

  // `bytes` of stage `stage` (-1: global_norm, over all) on each of the `ranks` pipeline ranks involved.
  virtual double collective_s(CollectiveKind /*kind*/, int /*stage*/, std::int64_t /*bytes*/) const { return 0; }

  // The optimizer step of one stage.
  virtual double optimizer_s(int /*stage*/) const { return 0; }
};

}  // namespace sluice::model
