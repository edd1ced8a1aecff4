#pragma once

#include <cstdint>

#include "kernels/cuda/attention.h"

namespace sluice::kernels::cuda {

// Attention with batched GEMMs, for all GPUs: the scores of a tile of queries over all their keys are stored in scratch
// as float32 and replaced by probabilities in place; the backward pass recomputes them from the log sums. Tiles are as
// large as `workspace` bytes allow, and at least one row of one key head's queries. The backward pass always adds to
// the gradients of keys and values.
inline constexpr std::int64_t kAttentionWorkspace = std::int64_t{128} << 20;

std::int64_t gemm_attention_scratch_bytes(const AttentionSizes& shape, std::int64_t workspace = kAttentionWorkspace);
void gemm_attention_forward(const AttentionForward& call, Device& device, Stream& stream,
                            std::int64_t workspace = kAttentionWorkspace);
void gemm_attention_backward(const AttentionBackward& call, Device& device, Stream& stream,
                             std::int64_t workspace = kAttentionWorkspace);

}  // namespace sluice::kernels::cuda
