#pragma once

#include <cstdint>

#include "kernels/carver.h"
#include "kernels/collective.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/weights.h"

namespace sluice::kernels::cpu {

// What one layer keeps, [rows, columns] each: letters as in kernels/stage.h.

// Until the input gradient.
template <class T>
struct LayerActivations {
  T* input = nullptr;        // [n, h]; the only one kept where the rest is recomputed
  T* statistics1 = nullptr;  // [n, 2]
  T* queries = nullptr;      // [n, q], turned
  T* log_sums = nullptr;     // [heads, n]
  T* middle = nullptr;       // [n, h], what the second norm and residual begin with
  T* statistics2 = nullptr;  // [n, 2]
  T* pre = nullptr;          // [n, f] or [n, 2f], what the activation function is applied to

  void carve_input(Carver<T>& carver, const RankSizes& sizes, std::int64_t rows);
  void carve_rest(Carver<T>& carver, const RankSizes& sizes, std::int64_t rows);
};

// Until the weight gradient: inputs of the four products.
template <class T>
struct LayerInputs {
  T* qkv = nullptr;     // [n, h]
  T* output = nullptr;  // [n, q]
  T* up = nullptr;      // [n, h]
  T* down = nullptr;    // [n, f]

  void carve(Carver<T>& carver, const RankSizes& sizes, std::int64_t rows);
};

// From the input gradient to the weight gradient: gradients of the outputs of the four products. Those of `output` and
// `down` are gradients of the residual too.
template <class T>
struct LayerGradients {
  T* qkv = nullptr;         // [n, q + 2w]
  T* output = nullptr;      // [n, h]
  T* up = nullptr;          // [n, f] or [n, 2f]
  const T* down = nullptr;  // [n, h]

  // All but `down`.
  void carve(Carver<T>& carver, const RankSizes& sizes, std::int64_t rows);
};

// Used by one layer after the other.
template <class T>
struct LayerScratch {
  LayerScratch(Carver<T>& carver, const RankSizes& sizes, std::int64_t rows);
  AttentionScratch<T> attention;
  T* qkv = nullptr;       // [n, q + 2w], forward
  T* hidden = nullptr;    // [n, h], backward
  T* attended = nullptr;  // [n, q], backward
  T* sums = nullptr;      // [2h]
};

// One layer of a stage on one slice.
template <class T>
struct Layer {
  const StageSpec& spec;
  const RankSizes& sizes;
  const LayerOffsets& at;
  const SliceShape& shape;
  const T* weights;
  TensorGroup* tensor;
  const T* cosines;  // [tokens, d / 2], null with learned positions
  const T* sines;

  // Fills `kept` from its input on, `inputs` and the keys and values of the slice, and `out` [n, h]. Without `out` it
  // stops before the last product: all activations are then there again.
  void forward(const KeysValues<T>& keys_values, const LayerActivations<T>& kept, const LayerInputs<T>& inputs,
               const LayerScratch<T>& scratch, T* out) const;
  // From gradients.down: fills the others, adds to `keys_values`' gradients and to those of biases and norms, and
  // writes that of the layer's input. The slice's own keys' gradients may be those in gradients.qkv, zeroed.
  void input_gradient(const KeysValues<T>& keys_values, const LayerActivations<T>& kept, const LayerInputs<T>& inputs,
                      const LayerGradients<T>& gradients, const LayerScratch<T>& scratch, T* weight_gradients,
                      T* input_gradient) const;
  // Adds the gradients of the four matrices.
  void weight_gradient(const LayerInputs<T>& inputs, const LayerGradients<T>& gradients, T* weight_gradients) const;

 private:
  const T* weight(std::int64_t offset) const { return offset < 0 ? nullptr : weights + offset; }
  AttentionShape attention_shape() const;
  HeadRows head_rows(std::int64_t heads) const;
  void sum_over_group(T* data, std::int64_t count) const;
};

}  // namespace sluice::kernels::cpu
