#include "kernels/cuda/attention.h"

#include <algorithm>

#include "kernels/attention_library.h"
#include "kernels/cuda/buffers.h"
#include "kernels/cuda/gemm_attention.h"

namespace sluice::kernels::cuda {
namespace {

AttentionLibrary* library_for(AttentionChoice choice, Device& device) {
  return choice == AttentionChoice::cudnn ? device.attention_library() : nullptr;
}

std::int64_t keys_in(const AttentionSizes& shape) { return shape.context + shape.tokens; }

// The offset of the values of all slices from their keys, in elements.
std::int64_t values_offset(const AttentionSizes& shape, const KeyRows& keys) {
  return values_after(shape.sequences * keys.tokens, shape.key_width());
}
const void* values_of(const AttentionSizes& shape, const KeyRows& keys) {
  return static_cast<const std::uint16_t*>(keys.keys) + values_offset(shape, keys);
}

AttentionProblem problem_of(const AttentionSizes& shape, Element element, const KeyRows& keys) {
  return {.sizes = shape,
          .element = element,
          .key_stride = shape.key_width(),
          .key_sequence_stride = keys.tokens * shape.key_width()};
}

// Gradients of keys and values in 16 bits that are not written to the fused rows, of the slice and its prefix: dense
// [sequences, keys, key_width], followed by those of the values, before the workspace of the library.
std::int64_t gradient_rows(const AttentionSizes& shape) { return shape.sequences * keys_in(shape); }
std::int64_t gradients_bytes(const AttentionSizes& shape) {
  return 4 * values_after(gradient_rows(shape), shape.key_width());
}

// Adds them to the float32 gradients of all slices, or writes them there.
void widen_gradients(const AttentionBackward& call, const std::uint16_t* gradient, Stream& stream) {
  const AttentionSizes& shape = call.shape;
  const std::int64_t of_sequence = keys_in(shape) * shape.key_width();
  const std::int64_t values_at = values_after(gradient_rows(shape), shape.key_width());
  for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    const std::uint16_t* const from = gradient + sequence * of_sequence;
    float* const to = call.keys.keys_gradient + sequence * call.keys.tokens * shape.key_width();
    widen(stream, call.element, from, of_sequence, call.accumulate, to);
    widen(stream, call.element, from + values_at, of_sequence, call.accumulate, to + values_offset(shape, call.keys));
  }
}

bool library_backward(AttentionLibrary& library, const AttentionBackward& call, Stream& stream) {
  const AttentionSizes& shape = call.shape;
  const bool in_rows = call.key_rows_gradient != nullptr;
  AttentionProblem problem = problem_of(shape, call.element, call.keys);
  problem.queries_gradient_stride = call.queries_gradient_stride;
  problem.keys_gradient_stride = in_rows ? call.queries_gradient_stride : shape.key_width();
  problem.keys_gradient_sequence_stride = keys_in(shape) * problem.keys_gradient_stride;
  auto* const gradient = static_cast<std::uint16_t*>(in_rows ? call.key_rows_gradient : call.scratch);
  const std::int64_t before = in_rows ? 0 : gradients_bytes(shape);
  if (!library.backward(
          problem,
          {.queries = call.queries,
           .keys = call.keys.keys,
           .values = values_of(shape, call.keys),
           .out = call.out,
           .out_gradient = call.out_gradient,
           .log_sums = call.log_sums,
           .queries_gradient = call.queries_gradient,
           .keys_gradient = gradient,
           .values_gradient =
               gradient + (in_rows ? shape.key_width() : values_after(gradient_rows(shape), shape.key_width())),
           .workspace = call.scratch + before,
           .workspace_bytes = attention_scratch_bytes(shape, call.choice) - before},
          stream)) {
    return false;
  }
  if (!in_rows) widen_gradients(call, gradient, stream);
  return true;
}

}  // namespace

std::int64_t attention_scratch_bytes(const AttentionSizes& shape, AttentionChoice choice) {
  const std::int64_t own = gemm_attention_scratch_bytes(shape);
  if (choice != AttentionChoice::cudnn) return own;
  return std::max(own, gradients_bytes(shape) + library_workspace_bytes(shape));
}

void attention_forward(const AttentionForward& call, Device& device, Stream& stream) {
  AttentionLibrary* const library = library_for(call.choice, device);
  if (library != nullptr && library->forward(problem_of(call.shape, call.element, call.keys),
                                             {.queries = call.queries,
                                              .keys = call.keys.keys,
                                              .values = values_of(call.shape, call.keys),
                                              .out = call.out,
                                              .log_sums = call.log_sums,
                                              .workspace = call.scratch,
                                              .workspace_bytes = attention_scratch_bytes(call.shape, call.choice)},
                                             stream)) {
    return;
  }
  gemm_attention_forward(call, device, stream);
}

bool attention_backward(const AttentionBackward& call, Device& device, Stream& stream) {
  if (AttentionLibrary* const library = library_for(call.choice, device); library != nullptr) {
    if (library_backward(*library, call, stream)) return call.key_rows_gradient != nullptr;
    // The library has, or may have, written the log sums of several sequences in another order.
    if (call.shape.sequences > 1 && library->has_run(call.shape)) {
      gemm_attention_forward({.choice = call.choice,
                              .shape = call.shape,
                              .element = call.element,
                              .queries = call.queries,
                              .keys = call.keys,
                              .out = call.out,
                              .log_sums = call.log_sums,
                              .scratch = call.scratch},
                             device, stream);
    }
  }
  row_dot_products(call.shape, call.element, call.out, call.out_gradient, call.dot_products, stream);
  if (!call.accumulate) {
    // Its GEMMs accumulate.
    const std::int64_t elements = 2 * values_after(call.shape.rows(), call.shape.key_width());
    device.zero(call.keys.keys_gradient, elements * std::int64_t{sizeof(float)}, stream);
  }
  gemm_attention_backward(call, device, stream);
  return false;
}

}  // namespace sluice::kernels::cuda
