#pragma once

#include <cstdint>

#include "kernels/cuda/elementwise.h"

namespace sluice::kernels::cuda {

// The kernels of layers with experts besides matrix multiplications and activation functions. All functions enqueue on
// a stream, and do nothing without rows. Symbols as in kernels/expert_mlp.h.

// Rows that are sent to experts: 16-bit numbers, followed by a float32 at element `tail`: its probability, or the
// gradient of that. Rows are aligned to 16 bytes.
struct RoutedRow {
  explicit constexpr RoutedRow(std::int64_t width) : tail((width + 7) / 8 * 8), stride(tail + 8) {}
  std::int64_t tail;
  std::int64_t stride;  // in 16-bit elements
};

// Chooses the k experts of each row with the highest logits, in descending order, and of equal logits those with the
// lower indices. Replaces the logits, `scores` [rows, experts], by the softmax over the chosen ones, with 0 for the
// others; for k = 1 by the softmax over all. Writes choices [rows, k].
void choose_experts(Stream& stream, std::int64_t rows, std::int64_t experts, std::int64_t k, float* scores,
                    std::int32_t* choices);
// Sorts `count` choices by expert, stably: writes the place of each, and the number of choices of each expert.
void place_choices(Stream& stream, std::int64_t count, std::int64_t experts, const std::int32_t* choices,
                   std::int32_t* places, std::int32_t* sent);

using RoutedRows = kernels::RoutedRows<float>;
// Copies each row of the shard to its k places in `out`, whose rows are `stride` apart; with its probabilities if
// `with_scores`: out[places[r, j]] = matrix[first + r].
void send_rows(Stream& stream, const RoutedRows& routed, const Half* matrix, std::int64_t width, bool with_scores,
               std::int64_t stride, Half* out);
// Adds up what came back: out[first + r] = sum over j of results[places[r, j]], plus out[first + r] if `add`, plus
// factors[first + r] * direction unless `direction` [width] is null. Sets the rows of other shards to 0 unless `add`.
void add_routed_rows(Stream& stream, Element element, const RoutedRows& routed, const Half* results,
                     std::int64_t stride, std::int64_t all_rows, std::int64_t width, bool add, const Half* factors,
                     const Half* direction, Half* out);
// From the gradients of the probabilities, which follow the rows in `results`: writes those of the logits [all_rows,
// experts], with 0 in the rows of other shards.
void logit_gradients(Stream& stream, Element element, const RoutedRows& routed, const Half* results,
                     const RoutedRow& row, std::int64_t all_rows, Half* gradients);

// Replaces numbers by their logistic function.
void apply_sigmoid(Stream& stream, std::int64_t count, float* numbers);
// From gradients of its outputs: writes those of its inputs.
void sigmoid_gradient(Stream& stream, Element element, std::int64_t count, const float* outputs,
                      const float* output_gradients, Half* gradients);

}  // namespace sluice::kernels::cuda
