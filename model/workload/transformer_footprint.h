#pragma once

#include <vector>

#include "model/graph/footprint.h"
#include "model/workload/training.h"
#include "model/workload/transformer.h"

namespace sluice::model {

// Bytes of a transformer's stages on one device, in mixed precision with Adam: 2 per weight, 2 or 4 per gradient, 12
// per parameter of optimizer state.
//
// Activations of one layer and one slice of n tokens, 16-bit, by lifetime (f the MLP's width; f = 4h):
//   to the input gradient   layer input nh, second residual nh, Q nh, GELU input nf, two dropout masks of nh bytes,
//                           and K and V rows 2nh
//   to the weight gradient  inputs of the four weight GEMMs nh + nh + nh + nf, as long as I and W are two ops or one
//   I to W only             their output gradients 3nh + nh + nf + nh
// The first two add up to 34 nbh bytes for GPT with dropout (Korthikanti et al. 2022, eq. 1), to n b h (10 + 24/t) with
// tensor parallelism (eq. 2) and n b h 34/t with sequence parallelism too (eq. 4). Stored scores (no flash attention,
// no recomputation) add 5 a n (c + n) b bytes: softmax, mask and the output of dropout; 2 of the 5 without dropout. As
// in the paper, norm statistics and log-sum-exps (under 0.1 %) are omitted. Full recomputation stores the layer's
// input, 2nbh; sliced, also K and V, which later slices read. One layer at a time is then recomputed in the backward's
// workspace; with split backward the inputs of its GEMMs stay from I to W.
//
// The head stores its input and that of the final norm, and the logits in 32 bit from F until I.
class TransformerFootprint : public Footprint {
 public:
  // Throws InputError if the training is invalid for the model (check_training).
  TransformerFootprint(Transformer model, Training training, std::vector<StageContents> stages);

  StageBytes stage(int stage) const override;
  // The context of a slice is that of `shape`. Lengths are tokens. Throws InputError if the bytes exceed 64 bits.
  SliceBytes slice(int stage, const MicrobatchShape& shape, int slice) const override;
  std::int64_t tied_embedding_bytes() const override;

 private:
  std::int64_t weights_of_each_shape(const StageContents& held) const;

  Transformer model_;
  Training training_;
  std::vector<StageContents> stages_;
};

}  // namespace sluice::model
