#pragma once

#include <cstdint>

#include "kernels/cuda/attention.h"

namespace sluice::kernels::cuda {

// Attention by one kernel that never stores scores (Dao 2023), with a running softmax over tiles of keys of the
// segments; the backward makes the probabilities again from the log sums. Needs the matrix units of sm_80 and later,
// heads of 64 or 128 numbers, and at most 80 KiB of shared memory.
//
// Forward, and the gradients of keys and values, give the same bits each time. The gradient of queries is a sum of
// atomic additions in float32, whose order is that of time: its last bits, before they are rounded to 16, may differ
// from run to run.
bool flash_fits(const AttentionShape& shape, int compute_capability);

// Of either call: the gradient of queries in float32. 0 where it does not fit any device.
std::int64_t flash_scratch_bytes(const AttentionShape& shape);

void flash_attention_forward(const AttentionForward& call, Device& device, Stream& stream);
void flash_attention_backward(const AttentionBackward& call, Device& device, Stream& stream);

}  // namespace sluice::kernels::cuda
