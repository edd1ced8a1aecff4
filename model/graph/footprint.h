// Public header.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/schedule/schedule.h"

namespace sluice::model {

// Bytes that one replica of a stage occupies for the whole run, on one device.
struct StageBytes {
  std::int64_t weights = 0;    // one version, in the compute precision; with ZeRO 3 the shard, and what stays gathered
  std::int64_t gradients = 0;  // from the start; the shard of accumulated_gradients from their first reduction
  // Of gradients that are allocated by the first B or W after a reduction, and freed when they have been reduced.
  std::int64_t accumulated_gradients = 0;
  std::int64_t optimizer = 0;  // master weights and Adam moments (after sharding)
  std::int64_t reduced = 0;    // gradient bytes that data-parallel reduction moves for this stage
  std::int64_t scratch = 0;    // used by its layers one after another; a rank has that of its largest stage
  std::int64_t gathered = 0;   // parameter bytes that are gathered (distributed optimizer, ZeRO 3)
  int buckets = 1;             // parts in which both are communicated, each when its gradients or layers are reached
};

// Bytes of one slice of one microbatch on one stage, on one device, by lifetime under split backward: from F until the
// input gradient (I or B) ends, from F until the weight gradient (W or B) ends, and from I until W ends.
struct SliceBytes {
  std::int64_t activations_to_input_gradient = 0;
  std::int64_t activations_to_weight_gradient = 0;
  std::int64_t gradients_to_weight_gradient =
      0;                                  // output gradients that W needs, from I until W ends (split backward only)
  std::int64_t kept = 0;                  // activations from F until the end of the batch
  std::int64_t keys_values = 0;           // K and V rows, from F until the input gradient ends
  std::int64_t keys_values_gradient = 0;  // dK/dV rows, accumulated from the I of later slices until this slice's own
  std::int64_t forward_workspace = 0;     // only while F runs (logits, unfused scores)
  std::int64_t backward_workspace = 0;    // only while B or I runs (logits' gradient, recomputed activations)
  std::int64_t vocabulary = 0;            // of the shard of the output layer, from S until T ends
  std::int64_t transfer_forward = 0;      // sent to the next stage after F
  std::int64_t transfer_backward = 0;     // sent to the previous stage after B or I
};

// Equal tensors of one slice of one microbatch on one stage, on one device.
struct SliceTensor {
  std::int64_t SliceBytes::*field = nullptr;  // that they are part of
  std::string_view name;
  std::string_view formula;  // of the bytes of each, in the workload's symbols
  std::int64_t count = 0;
  std::int64_t bytes = 0;  // of each
};

// The bytes of a workload on each stage; lowering stores them in the OpGraph. Contains no times.
class Footprint {
 public:
  virtual ~Footprint() = default;
  virtual StageBytes stage(int stage) const = 0;
  // The first stage, up to this one, with the same bytes, if that is known.
  virtual int alike(int stage) const { return stage; }
  // The formula of one of its fields, for people; "" where there is none.
  virtual std::string stage_formula(std::int64_t StageBytes::* /*field*/) const { return ""; }
  virtual SliceBytes slice(int stage, const MicrobatchShape& shape, int slice) const = 0;
  // What these are made of; empty where that is not known. The bytes of a field add up to it.
  virtual std::vector<SliceTensor> tensors(int /*stage*/, const MicrobatchShape& /*shape*/, int /*slice*/) const {
    return {};
  }
  // Bytes of the embedding gradient that is all-reduced between the first and the last stage where they share the
  // weight; otherwise 0.
  virtual std::int64_t tied_embedding_bytes() const { return 0; }
};

}  // namespace sluice::model
