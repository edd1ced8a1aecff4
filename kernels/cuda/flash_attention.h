#pragma once

#include <cstdint>

#include "kernels/cuda/attention.h"

namespace sluice::kernels::cuda {

// Fused attention that does not store scores (FlashAttention-2, Dao 2023): an online softmax over tiles of keys; the
// backward pass recomputes the probabilities from the log sums. Needs the tensor cores of sm_80 or later, heads of 64,
// 80, 96 or 128 elements, and at most 80 KiB of shared memory.
//
// The output and the gradients of keys and values are deterministic. The gradient of queries is accumulated with atomic
// additions in float32, so that its last bits, before rounding to 16 bits, may differ between runs.
bool flash_fits(const AttentionSizes& shape, int compute_capability);

// Returns the scratch size of either call, in bytes: the gradient of queries in float32. 0 for unsupported shapes.
std::int64_t flash_scratch_bytes(const AttentionSizes& shape);

void flash_attention_forward(const AttentionForward& call, Device& device, Stream& stream);
void flash_attention_backward(const AttentionBackward& call, Device& device, Stream& stream);

}  // namespace sluice::kernels::cuda
