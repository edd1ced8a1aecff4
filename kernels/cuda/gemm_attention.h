#pragma once

#include <cstdint>

#include "kernels/cuda/attention.h"

namespace sluice::kernels::cuda {

// Attention by batched products, for every GPU: the scores of a tile of queries, over all keys that they see, lie in
// scratch as float32, and become probabilities in place; the backward pass makes them again from the log sums. Tiles
// are as large as `workspace` bytes allow, but no smaller than one row of one key head's queries.
inline constexpr std::int64_t kAttentionWorkspace = std::int64_t{128} << 20;

std::int64_t gemm_attention_scratch_bytes(const AttentionShape& shape, std::int64_t workspace = kAttentionWorkspace);
void gemm_attention_forward(const AttentionForward& call, Device& device, Stream& stream,
                            std::int64_t workspace = kAttentionWorkspace);
void gemm_attention_backward(const AttentionBackward& call, Device& device, Stream& stream,
                             std::int64_t workspace = kAttentionWorkspace);

}  // namespace sluice::kernels::cuda
