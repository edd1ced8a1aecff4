#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/collective.h"
#include "kernels/cuda/block_carver.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/routing.h"
#include "kernels/weights.h"

namespace sluice::kernels::cuda {

// The MLP of a layer with experts on a device: the same parts and numbers as kernels/cpu/experts.h, where the symbols
// are. Logits, probabilities and their gradients are float32; what matrix multiplications read is 16-bit.
//
// The numbers of rows per expert come from the device: dispatch copies them to the host and waits for them, because
// every matrix multiplication and message needs them (decision 0021). The backward reads them on the host. Rows that
// are sent with their probability have the layout of RoutedRow, of stride w.

// What lives until the input gradient.
struct ExpertActivations {
  float* scores = nullptr;          // [o, e]
  std::int32_t* choices = nullptr;  // [o, k]
  std::int32_t* places = nullptr;   // [o, k]
  Half* pre = nullptr;              // [R, f] or [R, 2f]
  Half* shared_pre = nullptr;       // [n, s] or [n, 2s]
  float* shared_gate = nullptr;     // [n], with a gate of the shared experts

  void carve(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows);
};

// Inputs of matrix multiplications, which live until the weight gradient.
struct ExpertInputs {
  Half* up = nullptr;           // [R, w]
  Half* down = nullptr;         // [R, f], times the probabilities
  Half* shared_down = nullptr;  // [n, s], times the gate

  void carve(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows);
};

// Gradients of the outputs of matrix multiplications, which live from the input gradient to the weight gradient.
struct ExpertGradients {
  Half* logits = nullptr;       // [n, e]
  Half* up = nullptr;           // [R, f] or [R, 2f]
  Half* down = nullptr;         // [R, h]
  Half* shared_up = nullptr;    // [n, s] or [n, 2s]
  Half* shared_gate = nullptr;  // [n], of the gate's logits

  void carve(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows);
};

struct ExpertScratch {
  ExpertScratch() = default;
  ExpertScratch(BlockCarver& carver, const RankSizes& sizes, std::int64_t rows);
  Half* own = nullptr;              // [o k, w], rows that are sent or came back
  Half* outputs = nullptr;          // [R, w], of the experts; in the backward pass gradients of their inputs
  std::int32_t* counts = nullptr;   // [2, e], as ExpertRows
  float* gate_gradients = nullptr;  // [n]
};

// Bytes of pinned host memory per slice and layer, for the numbers of rows.
constexpr std::int64_t expert_host_bytes(const ExpertSizes& sizes) {
  return 2 * sizes.count * static_cast<std::int64_t>(sizeof(std::int32_t));
}

// Enqueues on the stream of `linear`.
struct ExpertMlp {
  const StageSpec& spec;
  const RankSizes& sizes;
  const LayerOffsets& at;
  std::int64_t rows;  // n
  const Half* weights;
  const Linear& linear;
  StreamGroup* tensor;
  StreamGroup* group;
  const std::function<void(Stream&)>* wait_for;  // SliceCall::wait_for
  // On the host: [e], number of rows sent to each expert; then [ranks, l], number received from each rank for each
  // expert of this one. Written by dispatch.
  std::int32_t* sent;

  void route(const Half* input, const ExpertActivations& kept, const ExpertScratch& scratch) const;
  void dispatch(const Half* input, const ExpertActivations& kept, const ExpertInputs& inputs,
                const ExpertScratch& scratch) const;
  void run_experts(const Half* input, const ExpertActivations& kept, const ExpertInputs& inputs,
                   const ExpertScratch& scratch, Half* out) const;
  void combine(const ExpertScratch& scratch) const { exchange(sizes.hidden, scratch.own, scratch.outputs, true); }
  void add_results(const ExpertActivations& kept, const ExpertScratch& scratch, Half* out) const;

  void combine_gradient(const Half* output_gradient, const ExpertActivations& kept, const ExpertGradients& gradients,
                        const ExpertScratch& scratch) const;
  void experts_gradient(const Half* output_gradient, const ExpertActivations& kept, const ExpertInputs& inputs,
                        const ExpertGradients& gradients, const ExpertScratch& scratch, Half* input_gradient) const;
  void dispatch_gradient(const ExpertScratch& scratch) const {
    exchange(RoutedRow(sizes.hidden).stride, scratch.own, scratch.outputs, true);
  }
  void add_input_gradients(const ExpertActivations& kept, const ExpertGradients& gradients,
                           const ExpertScratch& scratch, Half* input_gradient) const;

  void experts_weight_gradient(const Half* input, const Half* output_gradient, const ExpertInputs& inputs,
                               const ExpertGradients& gradients, float* weight_gradients) const;
  void router_weight_gradient(const Half* input, const ExpertGradients& gradients, float* weight_gradients) const;

 private:
  std::int64_t first_row() const { return rows * spec.tensor_rank / spec.tensor_parallel; }
  std::int64_t end_row() const { return rows * (spec.tensor_rank + 1) / spec.tensor_parallel; }
  RoutedRows routed(const ExpertActivations& kept) const {
    return {.first = first_row(),
            .rows = end_row() - first_row(),
            .k = sizes.experts.per_token,
            .experts = sizes.experts.count,
            .scores = kept.scores,
            .choices = kept.choices,
            .places = kept.places};
  }
  const std::int32_t* received() const { return sent + sizes.experts.count; }
  // Number of rows that the experts of this rank have received.
  std::int64_t received_rows() const;
  // Calls visit(expert of this rank, its first row, its number of rows) for those with rows.
  template <typename Visit>
  void for_each_expert(const Visit& visit) const;
  RowFactors probabilities(const ExpertInputs& inputs, const ExpertScratch& scratch) const;
  void read_counts(const ExpertScratch& scratch) const;
  // Sends rows of `width` elements from `own` to the experts, or back.
  void exchange(std::int64_t width, Half* own, Half* of_experts, bool back) const;
  void shared_forward(const Half* input, const ExpertActivations& kept, const ExpertInputs& inputs) const;
  void shared_gradient(const Half* output_gradient, const ExpertActivations& kept, const ExpertGradients& gradients,
                       const ExpertScratch& scratch, Half* input_gradient) const;
  void sum_over_group(void* data, std::int64_t count, Element element) const {
    if (spec.tensor_parallel > 1) tensor->all_reduce_sum(data, count, element, linear.stream);
  }
};

}  // namespace sluice::kernels::cuda
