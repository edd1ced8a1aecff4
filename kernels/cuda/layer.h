#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/block_carver.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/weights.h"

namespace sluice::kernels::cuda {

// What one layer keeps, [rows, columns] each: as in kernels/cpu/layer.h. Letters as in kernels/stage.h.

// Until the input gradient.
struct LayerActivations {
  Half* input = nullptr;         // [n, h]; the only one kept where the rest is recomputed
  float* statistics1 = nullptr;  // [n, 2]
  Half* queries = nullptr;       // [n, q], turned
  float* log_sums = nullptr;     // [heads, n]
  Half* middle = nullptr;        // [n, h], what the second norm and residual begin with
  float* statistics2 = nullptr;  // [n, 2]
  Half* pre = nullptr;           // [n, f] or [n, 2f], what the activation function is applied to, but for the bias

  void carve_input(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows);
  void carve_rest(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows);
};

// Until the weight gradient: inputs of the four products.
struct LayerInputs {
  Half* qkv = nullptr;     // [n, h]
  Half* output = nullptr;  // [n, q]
  Half* up = nullptr;      // [n, h]
  Half* down = nullptr;    // [n, f]

  void carve(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows);
};

// From the input gradient to the weight gradient: gradients of the outputs of the four products. Those of `output` and
// `down` are gradients of the residual too.
struct LayerGradients {
  Half* qkv = nullptr;         // [n, q + 2w]
  Half* output = nullptr;      // [n, h]
  Half* up = nullptr;          // [n, f] or [n, 2f]
  const Half* down = nullptr;  // [n, h]

  // All but `down`.
  void carve(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows);
};

// Used by one layer after the other.
struct LayerScratch {
  LayerScratch(BlockCarver& carver, const RankSizes& sizes, const SliceShape& shape, bool sliced);
  std::byte* attention = nullptr;
  Half* qkv = nullptr;             // [n, q + 2w], forward
  Half* hidden = nullptr;          // [n, h], backward
  Half* attended = nullptr;        // [n, q], backward
  float* products = nullptr;       // [heads, n], backward
  float* keys_gradient = nullptr;  // of one slice alone, [2, n w], backward; see values_after
};

// Keys and values of a layer, of all slices up to the one at work; `own` and its gradient are the last segment's.
struct LayerKeys {
  KeySegments segments;
  Half* own = nullptr;
  float* own_gradient = nullptr;
};

AttentionShape attention_shape(const RankSizes& sizes, const SliceShape& shape);

// A norm that is to follow what a layer puts out.
struct NextNorm {
  NormWeights weights;
  float* statistics = nullptr;
  Half* out = nullptr;  // null: there is none
};

// Where products of activations and weights run.
struct Place {
  Element element;
  Device& device;
  Stream& stream;

  // out [rows, outputs] = x [rows, inputs] x the transposed of weights [outputs, inputs]
  void product(const Half* x, const Half* weights, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
               Half* out) const;
  // dx [rows, inputs] = dout [rows, outputs] x weights; rows of dx are `stride` apart.
  void input_gradient(const Half* dout, const Half* weights, std::int64_t rows, std::int64_t outputs,
                      std::int64_t inputs, Half* dx, std::int64_t stride) const;
  // gradient [outputs, inputs] += the transposed of dout x x, in float32
  void weight_gradient(const Half* dout, const Half* x, std::int64_t rows, std::int64_t outputs, std::int64_t inputs,
                       float* gradient) const;
};

// One layer of a stage on one slice: as in kernels/cpu/layer.h, put on a stream.
struct Layer {
  const StageSpec& spec;
  const RankSizes& sizes;
  const LayerOffsets& at;
  const SliceShape& shape;
  const Half* weights;
  Place place;
  StreamGroup* group;
  const float* cosines;  // [tokens, d / 2], null with learned positions
  const float* sines;

  // The first norm, by itself: `forward` begins behind it.
  NextNorm first_norm(const LayerActivations& kept, const LayerInputs& inputs) const;
  // Without `out` it stops before the last product: all activations are then there again.
  void forward(const LayerKeys& keys, const LayerActivations& kept, const LayerInputs& inputs,
               const LayerScratch& scratch, Half* out, const NextNorm& next) const;
  void input_gradient(const LayerKeys& keys, const LayerActivations& kept, const LayerInputs& inputs,
                      const LayerGradients& gradients, const LayerScratch& scratch, float* weight_gradients,
                      Half* input_gradient) const;
  void weight_gradient(const LayerInputs& inputs, const LayerGradients& gradients, float* weight_gradients) const;

 private:
  const Half* weight(std::int64_t offset) const { return offset < 0 ? nullptr : weights + offset; }
  TurnShape turn_shape() const;
  NormWeights norm_weights(std::int64_t gain, std::int64_t bias) const;
  void sum_over_group(Half* data, std::int64_t count) const;
};

}  // namespace sluice::kernels::cuda
