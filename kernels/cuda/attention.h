#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/carver.h"
#include "kernels/device.h"

namespace sluice::kernels::cuda {

// Causal attention of one slice's queries over the keys of its own and all earlier slices; heads / kv_heads query heads
// share a key head: query head i reads key head i / (heads / kv_heads). Scores are scaled by 1 / sqrt(head_dim).
struct AttentionShape {
  int sequences = 1;
  int tokens = 0;  // of each sequence in this slice
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::int64_t context = 0;  // tokens before them: the sum over the earlier segments

  std::int64_t rows() const { return std::int64_t{sequences} * tokens; }  // row = sequence * tokens + token
  std::int64_t query_width() const { return std::int64_t{heads} * head_dim; }
  std::int64_t key_width() const { return std::int64_t{kv_heads} * head_dim; }
};

// Elements from the first key of a segment to its first value: keys are [sequences * tokens, key_width], dense, values
// follow them, each padded to 16 elements (kernels/carver.h). Their gradients lie the same way, in float32.
constexpr std::int64_t values_after(std::int64_t rows, std::int64_t key_width) { return padded(rows * key_width); }

// Keys and values by slice, the earliest first; the last is the one at work, with shape.tokens. Held by value: a kernel
// takes all of them as an argument (2568 bytes; see lanes.h for how large that may be).
inline constexpr int kMostSegments = 128;
struct KeySegments {
  int count = 0;
  std::int32_t tokens[kMostSegments] = {};   // of each sequence
  const void* keys[kMostSegments] = {};      // 16-bit, 32-byte aligned
  float* keys_gradient[kMostSegments] = {};  // added to; null in a forward
};

// All pointers are 32-byte aligned at least; rows, being head_dim numbers a head, are aligned to what divides
// head_dim * 2 bytes. Element::float16 or bfloat16.
struct AttentionForward {
  AttentionShape shape;
  Element element = Element::bfloat16;
  const void* queries = nullptr;  // [rows, query_width], dense
  KeySegments segments;
  void* out = nullptr;           // [rows, query_width], dense
  float* log_sums = nullptr;     // [heads, rows]: natural logarithm of the sum of exp(scaled score), with no shift
  std::byte* scratch = nullptr;  // attention_scratch_bytes
};

struct AttentionBackward {
  AttentionShape shape;
  Element element = Element::bfloat16;
  const void* queries = nullptr;
  KeySegments segments;  // with gradients: those of keys and values are added to, float32
  const float* log_sums = nullptr;
  const void* out_gradient = nullptr;  // [rows, query_width], dense
  const float* products = nullptr;     // [heads, rows]: sum over head_dim of out x out_gradient (row_products)
  void* queries_gradient = nullptr;    // 16-bit, written, rows queries_gradient_stride elements apart
  std::int64_t queries_gradient_stride = 0;
  std::byte* scratch = nullptr;
};

// Of either call, whichever of the two implementations runs it.
std::int64_t attention_scratch_bytes(const AttentionShape& shape);

// By one kernel where that fits the device and the shape (flash_attention.h), else by products (gemm_attention.h).
void attention_forward(const AttentionForward& call, Device& device, Stream& stream);
void attention_backward(const AttentionBackward& call, Device& device, Stream& stream);

// For AttentionBackward.
void row_products(const AttentionShape& shape, Element element, const void* out, const void* out_gradient,
                  float* products, Stream& stream);

}  // namespace sluice::kernels::cuda
