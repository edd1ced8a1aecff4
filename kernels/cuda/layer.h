#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/block_carver.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/linear.h"
#include "kernels/weights.h"

namespace sluice::kernels::cuda {

// Tensors that one layer stores, [rows, columns] each, as in kernels/cpu/layer.h; see kernels/stage.h for the shapes.

// Activations that live until the input gradient.
struct LayerActivations {
  Half* input = nullptr;         // [n, h]; the only one that is stored with recomputation
  float* statistics1 = nullptr;  // [n, 2]
  Half* queries = nullptr;       // [n, q], with rotary embedding
  float* log_sums = nullptr;     // [heads, n], or by sequence: see AttentionForward
  Half* middle = nullptr;        // [n, h], input of the second norm and residual
  float* statistics2 = nullptr;  // [n, 2]
  Half* pre = nullptr;           // [n, f] or [n, 2f], input of the activation of a dense layer, without bias unless
                                 // fuses_gelu()
  ExpertActivations experts;

  void carve_input(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows);
  void carve_rest(BlockCarver& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows);
};

// Inputs of the matrix multiplications, four in a dense layer, which live until the weight gradient.
struct LayerInputs {
  Half* qkv = nullptr;     // [n, h]
  Half* output = nullptr;  // [n, q]
  Half* up = nullptr;      // [n, h], also of the router
  Half* down = nullptr;    // [n, f], of a dense layer
  ExpertInputs experts;

  void carve(BlockCarver& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows);
};

// Gradients of the outputs of the matrix multiplications, which live from the input gradient to the weight
// gradient. Those of `output` and `down` are also the gradients of the residual.
struct LayerGradients {
  Half* qkv = nullptr;         // [n, q + 2w]
  Half* output = nullptr;      // [n, h]
  Half* up = nullptr;          // [n, f] or [n, 2f], of a dense layer
  const Half* down = nullptr;  // [n, h], of the layer's output
  ExpertGradients experts;

  // Carves all but `down`.
  void carve(BlockCarver& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows);
};

// Whether GemmEpilogues apply: see GemmChoice.
inline bool fuses_gelu(const StageSpec& spec) { return spec.gemms == GemmChoice::cublaslt && !spec.model.gated; }
inline bool fuses_bias_gradients(const StageSpec& spec) {
  const Transformer& model = spec.model;
  return spec.gemms == GemmChoice::cublaslt && (model.qkv_bias || model.projection_bias || model.mlp_bias);
}

// Scratch that all layers use in turn.
struct LayerScratch {
  LayerScratch(BlockCarver& carver, const RankSizes& sizes, const SliceShape& shape, const StageSpec& spec);
  std::byte* attention = nullptr;
  Half* qkv = nullptr;             // [n, q + 2w], forward
  Half* hidden = nullptr;          // [n, h], backward
  Half* attended = nullptr;        // [n, q], backward
  float* dot_products = nullptr;   // [heads, n], backward
  float* keys_gradient = nullptr;  // [2, n w], backward, if not sliced; see values_after
  float* bias_sums = nullptr;      // of the outputs of all GEMMs, one after the other, with fuses_bias_gradients
  ExpertScratch experts;
};

// KeyRows of a layer, whose rows of the slice F writes.
struct LayerKeys {
  std::int64_t tokens = 0;
  Half* keys = nullptr;
  float* keys_gradient = nullptr;

  KeyRows rows() const { return {.tokens = tokens, .keys = keys, .keys_gradient = keys_gradient}; }
};

// The norm that is applied to a layer's output.
struct NextNorm {
  NormWeights weights;
  float* statistics = nullptr;
  Half* out = nullptr;                 // null: none
  std::int32_t* not_finite = nullptr;  // of the layer's output: see residual_norm
};

// One layer of a stage on one slice, as in kernels/cpu/layer.h, enqueued on a stream.
struct Layer {
  LayerKind kind;
  const StageSpec& spec;
  const RankSizes& sizes;
  const LayerOffsets& at;
  const SliceShape& shape;
  const Half* weights;
  Linear linear;
  StreamGroup* group;
  StreamGroup* experts;
  const std::function<void(Stream&)>* wait_for;  // SliceCall::wait_for
  std::int32_t* rows_on_host;                    // ExpertMlp::sent
  const float* angles;  // of rotary_angles, from the slice's first token; null with learned positions

  // Tensors of one pass. `out` [n, h] is the layer's output in F, and the gradient of its input in I.
  struct Forward {
    const LayerKeys& keys;
    const LayerActivations& kept;
    const LayerInputs& inputs;
    const LayerScratch& scratch;
    Half* out = nullptr;
    NextNorm next{};
  };
  struct Backward {
    const LayerKeys& keys;
    const LayerActivations& kept;
    const LayerInputs& inputs;
    const LayerGradients& gradients;
    const LayerScratch& scratch;
    float* weight_gradients = nullptr;
    Half* out = nullptr;
    std::int32_t* not_finite = nullptr;
  };

  // Returns the first norm, which `forward` does not include.
  NextNorm first_norm(const LayerActivations& kept, const LayerInputs& inputs) const;
  // Stops before the last matrix multiplication if `out` is null, as recomputation does.
  void forward(const Forward& pass) const;
  void input_gradient(const Backward& pass) const;
  void weight_gradient(const LayerInputs& inputs, const LayerGradients& gradients, const LayerScratch& scratch,
                       float* weight_gradients) const;

  // The same in parts (Stage::run_part). `complete_forward` follows the forward parts: it adds the results of experts,
  // and computes the next norm.
  void forward_part(LayerPart part, const Forward& pass) const;
  void complete_forward(const Forward& pass) const;
  void input_gradient_part(LayerPart part, const Backward& pass) const;
  void weight_gradient_part(LayerPart part, const LayerInputs& inputs, const LayerGradients& gradients,
                            const LayerScratch& scratch, float* weight_gradients) const;

 private:
  const Half* weight(std::int64_t offset) const { return offset < 0 ? nullptr : weights + offset; }
  QkvShape qkv_shape(const LayerKeys& keys) const;
  NormWeights norm_weights(std::int64_t gain, std::int64_t bias) const;
  void sum_over_group(Half* data, std::int64_t count) const;
  ExpertMlp expert_mlp() const {
    return {.spec = spec,
            .sizes = sizes,
            .at = at,
            .rows = shape.rows(),
            .weights = weights,
            .linear = linear,
            .tensor = group,
            .group = experts,
            .wait_for = wait_for,
            .sent = rows_on_host};
  }
  void attention_forward(const Forward& pass) const;
  void mlp_forward(const Forward& pass) const;
  void attention_input_gradient(const Backward& pass) const;
  void mlp_input_gradient(const Backward& pass) const;
  void add_bias_gradient(const Half* gradient, std::int64_t width, std::int64_t bias, float* weight_gradients) const;
};

}  // namespace sluice::kernels::cuda
