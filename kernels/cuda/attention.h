#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_sizes.h"
#include "kernels/carver.h"
#include "kernels/device.h"

namespace sluice::kernels::cuda {

// Keys of all slices of a microbatch, [sequences, tokens, key_width], followed by the values (values_after). A slice
// reads those of its prefix and its own, which follow the prefix.
struct KeyRows {
  std::int64_t tokens = 0;         // per sequence, of all slices
  const void* keys = nullptr;      // 16-bit, 32-byte aligned
  float* keys_gradient = nullptr;  // not used by the forward pass
};

// Arguments of the forward pass. Pointers are aligned to at least 32 bytes. Element::float16 or bfloat16.
struct AttentionForward {
  AttentionChoice choice = AttentionChoice::gemm;
  AttentionSizes shape;
  Element element = Element::bfloat16;
  const void* queries = nullptr;  // [rows, query_width], dense
  KeyRows keys;
  void* out = nullptr;  // [rows, query_width], dense
  // [heads, rows], or [sequences, heads, tokens] if a library has written them: ln of the sum of exp(scaled score),
  // without shift.
  float* log_sums = nullptr;
  std::byte* scratch = nullptr;  // attention_scratch_bytes
};

// Arguments of the backward pass.
struct AttentionBackward {
  AttentionChoice choice = AttentionChoice::gemm;
  AttentionSizes shape;
  Element element = Element::bfloat16;
  const void* queries = nullptr;
  KeyRows keys;            // with float32 gradients
  bool accumulate = true;  // add to the gradients of keys and values; false, which requires that the slice has all
                           // tokens: write them, whatever they were before
  // If not null, which requires a slice that has all tokens: a library writes gradients of keys and values here in 16
  // bits, in rows like those of queries_gradient, the values after the keys.
  void* key_rows_gradient = nullptr;
  void* out = nullptr;                 // of the forward pass, which may have to run again
  float* log_sums = nullptr;           // likewise
  const void* out_gradient = nullptr;  // [rows, query_width], dense
  // [heads, rows]: sum over head_dim of out x out_gradient; scratch of attention_backward, computed by
  // row_dot_products.
  float* dot_products = nullptr;
  void* queries_gradient = nullptr;  // 16-bit, written; rows are queries_gradient_stride elements apart
  std::int64_t queries_gradient_stride = 0;
  std::byte* scratch = nullptr;
};

// Returns the scratch size of either call, in bytes, for all implementations that `choice` may use.
std::int64_t attention_scratch_bytes(const AttentionSizes& shape, AttentionChoice choice);

// Run the library of the device (kernels/attention_library.h) if the library can, else GEMMs (gemm_attention.h).
// attention_backward returns whether gradients of keys and values are in AttentionBackward::key_rows_gradient.
void attention_forward(const AttentionForward& call, Device& device, Stream& stream);
bool attention_backward(const AttentionBackward& call, Device& device, Stream& stream);

// Computes AttentionBackward::dot_products, which gemm_attention_backward reads.
void row_dot_products(const AttentionSizes& shape, Element element, const void* out, const void* out_gradient,
                      float* dot_products, Stream& stream);

}  // namespace sluice::kernels::cuda
