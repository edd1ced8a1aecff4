#pragma once

#include <string>
#include <vector>

#include "model/blocks/layer_tensors.h"
#include "model/blocks/stage.h"
#include "model/graph/footprint.h"

namespace sluice::model {

// Returns the host memory of one device for a stage with Training::optimizer_offload: the states of this fraction of
// the parameters and a copy of their gradients.
std::int64_t offloaded_bytes(const Model& model, const Training& training, const StageContents& contents);

// Bytes of a transformer's stages on one device, in mixed precision with Adam: 2 per weight, 2 or 4 per gradient, 12
// per parameter of optimizer state. With ZeRO 3, as in FSDP2: 4 per sharded weight, gradient and Adam moment, and the
// units that are gathered in the GEMMs' precision.
//
// The tensors of a layer are those of layer_tensors.h. Those to the input and to the weight gradient add up to 34 nbh
// bytes for GPT with dropout (Korthikanti et al. 2022, eq. 1), to n b h (10 + 24/t) with tensor parallelism (eq. 2) and
// n b h 34/t with sequence parallelism too (eq. 4). Stored scores (no flash attention, no recomputation) add
// 5 a n (c + n) b bytes: softmax, mask and the output of dropout; 2 of the 5 without dropout. As in the paper, norm
// statistics and log-sum-exps (under 0.1 %) are omitted. Full recomputation stores the layer's input, 2nbh; sliced,
// also K and V, which later slices read. One layer at a time is then recomputed in the backward's workspace; with split
// backward the inputs of its GEMMs stay from I to W. The parts of selective recomputation are treated in the same way.
//
// Work that is forward-only has weights alone, one layer's tensors at a time as workspace, and keys and values: of a
// sequence that is cut into slices, or, of prefill, until the end.
//
// The head stores its input and that of the final norm, and the softmax in 32 bit from F until I; with multi-token
// prediction, of each of its passes.
class TransformerFootprint : public Footprint {
 public:
  // `workspace` is of the GEMM libraries, for the whole run. Throws InputError if the training is invalid for the model
  // (check_training).
  TransformerFootprint(Model model, Training training, std::vector<StageContents> stages, std::int64_t workspace = 0);

  StageBytes stage(int stage) const override;
  int alike(int stage) const override { return alike_[static_cast<std::size_t>(stage)]; }
  std::string stage_formula(std::int64_t StageBytes::*field) const override;
  // The context of a slice is that of `shape`. Lengths are tokens. Throws InputError if the bytes exceed 64 bits.
  SliceBytes slice(int stage, const MicrobatchShape& shape, int slice) const override;
  std::vector<SliceTensor> tensors(int stage, const MicrobatchShape& shape, int slice) const override;
  std::int64_t tied_embedding_bytes() const override;

 private:
  // Of one slice on one device.
  struct SliceSize {
    std::int64_t tokens;  // of a sequence
    std::int64_t rows;    // of all sequences
    std::int64_t context;
    bool sliced;
  };
  // Adds the tensors of a slice to `out`: a list or a sum. `again`: the modules that are recomputed.
  template <typename Out>
  void add_slice(Out& out, int stage, const MicrobatchShape& shape, int slice) const;
  template <typename Out>
  void add_encoder(Out& out, const StageContents& held, int sequences) const;
  template <typename Out>
  void add_forward_only(Out& out, int stage, const SliceSize& size) const;
  template <typename Out>
  void add_head(Out& out, const StageContents& held, const SliceSize& size) const;
  template <typename Out>
  void add_vocabulary(Out& out, const SliceSize& size) const;
  template <typename Out>
  void add_head_workspace(Out& out, const SliceSize& size) const;
  template <typename Out>
  void add_transfers(Out& out, int stage, const SliceSize& size) const;
  LayerTensors tensors_of(int kind, bool predicts, const SliceSize& size) const;
  std::int64_t deferred_bytes() const;
  bool keeps_logits() const;
  std::int64_t split_width(const SliceSize& size) const;  // of the hidden states, where norms are computed
  std::int64_t parameters_of(const StageContents& held) const;
  std::int64_t sharded(const StageContents& held, std::int64_t bytes_per_parameter) const;
  void offload_optimizer(const StageContents& held, StageBytes& bytes) const;
  void shard_parameters(const StageContents& held, StageBytes& bytes) const;
  std::int64_t unit_bytes(const StageContents& held) const;

  Model model_;
  Training training_;
  std::vector<StageContents> stages_;
  std::vector<int> alike_;
  std::int64_t workspace_;
};

}  // namespace sluice::model
