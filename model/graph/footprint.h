// Public header.
#pragma once

#include <cstdint>

#include "model/schedule/schedule.h"

namespace sluice::model {

// Bytes that one replica of a stage occupies for the whole run, on one device.
struct StageBytes {
  std::int64_t weights = 0;  // one version, in the compute precision
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;  // master weights and Adam moments (after sharding)
  std::int64_t reduced = 0;    // gradient bytes that data-parallel reduction moves for this stage
  std::int64_t scratch = 0;    // used by its layers one after another; a rank has that of its largest stage
  std::int64_t gathered = 0;   // parameter bytes that are gathered after the step (distributed optimizer)
};

// Bytes of one slice of one microbatch on one stage, on one device, by lifetime under split backward: from F until the
// input gradient (I or B) ends, from F until the weight gradient (W or B) ends, and from I until W ends.
struct SliceBytes {
  std::int64_t activations_to_input_gradient = 0;
  std::int64_t activations_to_weight_gradient = 0;
  std::int64_t gradients_to_weight_gradient =
      0;                                  // output gradients that W needs, from I until W ends (split backward only)
  std::int64_t keys_values = 0;           // K and V rows, from F until the input gradient ends
  std::int64_t keys_values_gradient = 0;  // dK/dV rows, accumulated from the I of later slices until this slice's own
  std::int64_t forward_workspace = 0;     // only while F runs (logits, unfused scores)
  std::int64_t backward_workspace = 0;    // only while B or I runs (logits' gradient, recomputed activations)
  std::int64_t transfer_forward = 0;      // sent to the next stage after F
  std::int64_t transfer_backward = 0;     // sent to the previous stage after B or I
};

// The bytes of a workload on each stage; lowering stores them in the OpGraph. Contains no times.
class Footprint {
 public:
  virtual ~Footprint() = default;
  virtual StageBytes stage(int stage) const = 0;
  virtual SliceBytes slice(int stage, const MicrobatchShape& shape, int slice) const = 0;
  // Bytes of the embedding gradient that is all-reduced between the first and the last stage where they share the
  // weight; otherwise 0.
  virtual std::int64_t tied_embedding_bytes() const { return 0; }
};

}  // namespace sluice::model
