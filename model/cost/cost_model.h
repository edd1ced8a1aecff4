// Public header.
#pragma once

#include <cstdint>
#include <span>

#include "model/cost/sharing.h"
#include "model/graph/collective_kind.h"
#include "model/schedule/schedule.h"
#include "model/weave/weave.h"

namespace sluice::model {

// Time of a transfer: it occupies its two lanes for `occupied_s` and arrives `latency_s` later.
struct TransferTime {
  double occupied_s = 0;
  double latency_s = 0;
};

// Prices the ops of an OpGraph, in seconds. Implementations are immutable. Results must be finite and >= 0; otherwise
// pricing throws InputError naming the op.
class CostModel {
 public:
  virtual ~CostModel() = default;

  // One op of `stage` on slice `slice` of a microbatch of `shape`. B is the whole backward, I and W are its parts.
  // Includes tensor-parallel collectives, excludes recomputation.
  virtual double compute_s(OpKind kind, int stage, const MicrobatchShape& shape, int slice) const = 0;

  // A joint block of an F and a B or I. By default the sum of their times.
  virtual double joint_s(int forward_stage, const MicrobatchShape& forward_shape, int forward_slice, OpKind backward,
                         int backward_stage, const MicrobatchShape& backward_shape, int backward_slice) const {
    return compute_s(OpKind::F, forward_stage, forward_shape, forward_slice) +
           compute_s(backward, backward_stage, backward_shape, backward_slice);
  }

  // The parts within an op or a joint block that has experts, on the compute and communication lanes of its rank; none
  // by default. Their end is that of compute_s or joint_s, but for kernels that the host launches too slowly.
  virtual WovenBlock woven_op(OpKind /*kind*/, int /*stage*/, const MicrobatchShape& /*shape*/, int /*slice*/) const {
    return {};
  }
  virtual WovenBlock woven_recompute(int /*stage*/, const MicrobatchShape& /*shape*/, int /*slice*/) const {
    return {};
  }
  virtual WovenBlock woven_joint(int /*forward_stage*/, const MicrobatchShape& /*forward_shape*/, int /*forward_slice*/,
                                 OpKind /*backward*/, int /*backward_stage*/, const MicrobatchShape& /*backward_shape*/,
                                 int /*backward_slice*/) const {
    return {};
  }

  // Recomputation of the activations of one slice before its backward.
  virtual double recompute_s(int /*stage*/, const MicrobatchShape& /*shape*/, int /*slice*/) const { return 0; }

  // Returns the first stage with the same times of compute_s and recompute_s.
  virtual int alike(int stage) const { return stage; }

  // `bytes` from pipeline rank `from` to pipeline rank `to`. The latency does not depend on the bytes.
  virtual TransferTime transfer(int from, int to, std::int64_t bytes) const = 0;

  // `bytes` that the forward of a slice stores, to the memory of the host or back.
  virtual double host_copy_s(int /*stage*/, const MicrobatchShape& /*shape*/, int /*slice*/,
                             std::int64_t /*bytes*/) const {
    return 0;
  }

  // Returns the resources that `links` share, one entry per link, or an empty result. `transfer` is the time of a
  // transfer without contention.
  virtual LinkSharing sharing(std::span<const LinkEnds> /*links*/) const { return {}; }

  // `bytes` of stage `stage` (-1: global_norm, over all stages) on each of the pipeline ranks involved.
  virtual double collective_s(CollectiveKind /*kind*/, int /*stage*/, std::int64_t /*bytes*/) const { return 0; }

  // The optimizer step of one stage.
  virtual double optimizer_s(int /*stage*/) const { return 0; }
};

}  // namespace sluice::model
