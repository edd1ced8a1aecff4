#pragma once

#include <cstdint>

#include "kernels/carver.h"
#include "kernels/collective.h"
#include "kernels/weights.h"

namespace sluice::kernels::cpu {

// The MLP of a layer with experts: a router chooses k experts per token; rows are sent to the ranks of their experts
// (dispatch), pass the experts, and are sent back and added (combine). No token is dropped.
//
// Symbols: n rows of the slice, o own rows (the shard of them that this tensor-parallel rank routes), e experts of the
// layer, l experts of this rank, k experts per token, f size of an expert, s size of the shared experts on this rank,
// and R the maximum number of rows that the experts of this rank receive (ExpertSizes::most_rows). The memory is that
// of R rows, however many arrive, because a run does not allocate.
//
// The probabilities of the k experts are the softmax of their logits (Megatron-LM's default, and Mixtral's); for k = 1
// the softmax over all logits, because the former is constant. Of equal logits, the lower index is chosen. The input of
// an expert's last matrix is multiplied with the probability, as in Megatron-LM's grouped MLP.

// What lives until the input gradient.
template <class T>
struct ExpertActivations {
  T* scores = nullptr;               // [o, e], the probabilities; 0 for experts that were not chosen, unless k = 1
  std::int32_t* choices = nullptr;   // [o, k], experts
  std::int32_t* places = nullptr;    // [o, k], places among the rows that this rank sends, which are sorted by expert
  std::int32_t* sent = nullptr;      // [e], number of rows sent to each expert
  std::int32_t* received = nullptr;  // [ranks, l], number of rows received from each rank for each expert
  T* pre = nullptr;                  // [R, f] or [R, 2f], inputs of the activation function
  T* shared_pre = nullptr;           // [n, s] or [n, 2s]
  T* shared_gate = nullptr;          // [n], with a gate of the shared experts

  void carve(Carver<T>& carver, const ExpertSizes& sizes, std::int64_t rows, std::int64_t tensor_parallel);
};

// Inputs of matrix multiplications, which live until the weight gradient. The router's and the shared experts' is
// LayerInputs::up.
template <class T>
struct ExpertInputs {
  std::int32_t* ends = nullptr;  // [l], end of the rows of each expert
  T* up = nullptr;               // [R, h + 1], rows sorted by expert, each followed by its probability
  T* down = nullptr;             // [R, f], times the probabilities
  T* shared_down = nullptr;      // [n, s], times the gate

  void carve(Carver<T>& carver, const RankSizes& sizes, std::int64_t rows);
};

// Gradients of the outputs of matrix multiplications, which live from the input gradient to the weight gradient.
template <class T>
struct ExpertGradients {
  T* logits = nullptr;       // [n, e]
  T* up = nullptr;           // [R, f] or [R, 2f]
  T* down = nullptr;         // [R, h]
  T* shared_up = nullptr;    // [n, s] or [n, 2s]
  T* shared_gate = nullptr;  // [n], of the gate's logits

  void carve(Carver<T>& carver, const RankSizes& sizes, std::int64_t rows);
};

template <class T>
struct ExpertScratch {
  ExpertScratch() = default;
  ExpertScratch(Carver<T>& carver, const RankSizes& sizes, std::int64_t rows);
  T* own = nullptr;      // [o k, h + 1], rows that are sent or came back
  T* outputs = nullptr;  // [R, h + 1], of the experts; in the backward pass gradients of their inputs
  T* active = nullptr;   // [R, f], outputs of the activation function
  T* shared = nullptr;   // [n, s]
};

template <class T>
struct ExpertMlp {
  const StageSpec& spec;
  const RankSizes& sizes;
  const LayerOffsets& at;
  std::int64_t rows;  // n
  const T* weights;
  TensorGroup* tensor;
  ExpertGroup* group;

  // Forward: from `input` [n, h] to `out` [n, h], equal on all tensor-parallel ranks, in this order.
  // Writes scores, choices, places and sent.
  void route(const T* input, const ExpertActivations<T>& kept) const;
  // Sends rows to their experts, after their numbers: writes received, ends and inputs.up.
  void dispatch(const T* input, const ExpertActivations<T>& kept, const ExpertInputs<T>& inputs,
                const ExpertScratch<T>& scratch) const;
  // Runs the experts of this rank, and the shared ones, whose results it writes to `out`. Stops before the last
  // matrices if `out` is null.
  void run_experts(const T* input, const ExpertActivations<T>& kept, const ExpertInputs<T>& inputs,
                   const ExpertScratch<T>& scratch, T* out) const;
  // Sends the results back, to scratch.own.
  void combine(const ExpertActivations<T>& kept, const ExpertScratch<T>& scratch) const {
    exchange(kept, sizes.hidden, scratch.own, scratch.outputs, true);
  }
  // Adds the results in scratch.own to `out`, over all tensor-parallel ranks.
  void add_results(const ExpertActivations<T>& kept, const ExpertScratch<T>& scratch, T* out) const;

  // Input gradient: from the gradient of `out`, `output_gradient` [n, h], to `gradients` and the gradient of `input`.
  // Sends output gradients to the experts: writes gradients.down.
  void combine_gradient(const T* output_gradient, const ExpertActivations<T>& kept, const ExpertGradients<T>& gradients,
                        const ExpertScratch<T>& scratch) const;
  // Writes `input_gradient` of the shared experts, of which other tensor-parallel ranks have other parts.
  void experts_gradient(const T* output_gradient, const ExpertActivations<T>& kept, const ExpertInputs<T>& inputs,
                        const ExpertGradients<T>& gradients, const ExpertScratch<T>& scratch, T* input_gradient) const;
  // Sends the gradients of the experts' inputs back, to scratch.own.
  void dispatch_gradient(const ExpertActivations<T>& kept, const ExpertScratch<T>& scratch) const {
    exchange(kept, sizes.hidden + 1, scratch.own, scratch.outputs, true);
  }
  // Adds those in scratch.own and that of the router to `input_gradient`, over all tensor-parallel ranks.
  void add_input_gradients(const ExpertActivations<T>& kept, const ExpertGradients<T>& gradients,
                           const ExpertScratch<T>& scratch, T* input_gradient) const;

  // Accumulate the gradients of matrices: of the experts of this rank and the shared ones but for their gate, and of
  // the router and that gate. Nothing is exchanged.
  void experts_weight_gradient(const T* input, const T* output_gradient, const ExpertInputs<T>& inputs,
                               const ExpertGradients<T>& gradients, T* weight_gradients) const;
  void router_weight_gradient(const T* input, const ExpertGradients<T>& gradients, T* weight_gradients) const;

 private:
  // The shard of the rows that this rank routes.
  std::int64_t first_row() const { return rows * spec.tensor_rank / spec.tensor_parallel; }
  std::int64_t end_row() const { return rows * (spec.tensor_rank + 1) / spec.tensor_parallel; }

  void exchange_counts(const ExpertActivations<T>& kept, const ExpertInputs<T>& inputs) const;
  // Sends `own` [o k, width] to the experts, which receive [R, width], or back.
  void exchange(const ExpertActivations<T>& kept, std::int64_t width, T* own, T* of_experts, bool back) const;
  void activate(T* pre, std::int64_t count, std::int64_t width, T* out) const;
  void activation_gradient(const T* pre, std::int64_t count, std::int64_t width, T* gradient) const;
  void shared_forward(const T* input, const ExpertActivations<T>& kept, const ExpertInputs<T>& inputs) const;
  void shared_gradient(const T* output_gradient, const ExpertActivations<T>& kept, const ExpertGradients<T>& gradients,
                       const ExpertScratch<T>& scratch, T* input_gradient) const;
  void router_gradient(const ExpertActivations<T>& kept, const ExpertGradients<T>& gradients,
                       const ExpertScratch<T>& scratch) const;
  void sum_over_group(T* data, std::int64_t count) const {
    if (spec.tensor_parallel > 1) tensor->all_reduce_sum(data, count);
  }
};

}  // namespace sluice::kernels::cpu
