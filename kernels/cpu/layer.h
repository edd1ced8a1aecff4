#pragma once

#include <cstdint>

#include "kernels/carver.h"
#include "kernels/collective.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/experts.h"
#include "kernels/part_log.h"
#include "kernels/weights.h"

namespace sluice::kernels::cpu {

// Tensors that one layer stores, [rows, columns] each; see kernels/stage.h for the shapes.

// Activations that live until the input gradient.
template <class T>
struct LayerActivations {
  T* input = nullptr;        // [n, h]; the only one that is stored with recomputation
  T* statistics1 = nullptr;  // [n, 2]
  T* queries = nullptr;      // [n, q], with rotary embedding
  T* log_sums = nullptr;     // [heads, n]
  T* middle = nullptr;       // [n, h], input of the second norm and residual
  T* statistics2 = nullptr;  // [n, 2]
  T* pre = nullptr;          // [n, f] or [n, 2f], input of the activation function, of a dense layer
  ExpertActivations<T> experts;

  void carve_input(Carver<T>& carver, const RankSizes& sizes, std::int64_t rows);
  void carve_rest(Carver<T>& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows);
};

// Inputs of the matrix multiplications, four in a dense layer, which live until the weight gradient.
template <class T>
struct LayerInputs {
  T* qkv = nullptr;     // [n, h]
  T* output = nullptr;  // [n, q]
  T* up = nullptr;      // [n, h], also of the router
  T* down = nullptr;    // [n, f], of a dense layer
  ExpertInputs<T> experts;

  void carve(Carver<T>& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows);
};

// Gradients of the outputs of the matrix multiplications, which live from the input gradient to the weight
// gradient. Those of `output` and `down` are also the gradients of the residual.
template <class T>
struct LayerGradients {
  T* qkv = nullptr;         // [n, q + 2w]
  T* output = nullptr;      // [n, h]
  T* up = nullptr;          // [n, f] or [n, 2f], of a dense layer
  const T* down = nullptr;  // [n, h], of the layer's output
  ExpertGradients<T> experts;

  // Carves all but `down`.
  void carve(Carver<T>& carver, const RankSizes& sizes, LayerKind kind, std::int64_t rows);
};

// Scratch that all layers use in turn.
template <class T>
struct LayerScratch {
  LayerScratch(Carver<T>& carver, const RankSizes& sizes, bool experts, std::int64_t rows);
  AttentionScratch<T> attention;
  T* qkv = nullptr;       // [n, q + 2w], forward
  T* hidden = nullptr;    // [n, h], backward
  T* attended = nullptr;  // [n, q], backward
  T* sums = nullptr;      // [2h]
  ExpertScratch<T> experts;
};

// One layer of a stage on one slice.
template <class T>
struct Layer {
  LayerKind kind;
  const StageSpec& spec;
  const RankSizes& sizes;
  const LayerOffsets& at;
  const SliceShape& shape;
  const T* weights;
  TensorGroup* tensor;
  ExpertGroup* experts;
  PartLog* parts;
  const T* cosines;  // [tokens, d / 2], null with learned positions
  const T* sines;

  // Tensors of one pass. `out` [n, h] is the layer's output in F, and the gradient of its input in I.
  struct Forward {
    const KeysValues<T>& keys_values;
    const LayerActivations<T>& kept;
    const LayerInputs<T>& inputs;
    const LayerScratch<T>& scratch;
    T* out = nullptr;
  };
  struct Backward {
    const KeysValues<T>& keys_values;
    const LayerActivations<T>& kept;
    const LayerInputs<T>& inputs;
    const LayerGradients<T>& gradients;
    const LayerScratch<T>& scratch;
    T* weight_gradients = nullptr;
    T* out = nullptr;
  };

  // From kept.input, writes the rest of `kept`, `inputs`, the slice's keys and values, and `out`. Stops before the last
  // matrix multiplication if `out` is null, as recomputation does.
  void forward(const Forward& pass) const;
  // From gradients.down, writes the other gradients and that of the layer's input, and accumulates the gradients of
  // `keys_values`, biases and norms. Without slices, the gradients of keys and values lie in gradients.qkv, zeroed.
  void input_gradient(const Backward& pass) const;
  // Accumulates the gradients of the matrices.
  void weight_gradient(const LayerInputs<T>& inputs, const LayerGradients<T>& gradients, T* weight_gradients) const;

  // The same in parts (Stage::run_part). `complete_forward` follows the forward parts: it adds the results of experts.
  void forward_part(LayerPart part, const Forward& pass) const;
  void complete_forward(const Forward& pass) const;
  void input_gradient_part(LayerPart part, const Backward& pass) const;
  void weight_gradient_part(LayerPart part, const LayerInputs<T>& inputs, const LayerGradients<T>& gradients,
                            T* weight_gradients) const;

 private:
  const T* weight(std::int64_t offset) const { return offset < 0 ? nullptr : weights + offset; }
  HeadRows head_rows(std::int64_t heads) const;
  // Call apply_rotary for the keys, or values, of the slice, between its dense rows of `stride` elements and `rows` of
  // KeysValues.
  void write_keys(const KeysValues<T>& keys_values, const T* from, std::int64_t stride, const T* bias, bool rotates,
                  T* rows) const;
  void read_key_gradients(const KeysValues<T>& keys_values, const T* rows, bool rotates, T* to,
                          std::int64_t stride) const;
  ExpertMlp<T> expert_mlp() const {
    return {.spec = spec,
            .sizes = sizes,
            .at = at,
            .rows = shape.rows(),
            .weights = weights,
            .tensor = tensor,
            .group = experts};
  }
  void sum_over_group(T* data, std::int64_t count) const;
  void end(LayerPart part) const {
    if (kind == LayerKind::experts && parts != nullptr) parts->end(part);
  }
  void attention_forward(const Forward& pass) const;
  void mlp_forward(const Forward& pass) const;
  void attention_input_gradient(const Backward& pass) const;
  void mlp_input_gradient(const Backward& pass) const;
};

}  // namespace sluice::kernels::cpu
