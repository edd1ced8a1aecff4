#pragma once

#include "model/blocks/kernel_parts.h"

namespace sluice::model {

// Fused attention over context-parallel ranks, F or I (W has none). The 2 cp chunks of a sequence are distributed so
// that every rank has the same part of the causal half square.
//   ring        cp kernels, each on one rank's keys and values, while the next ones are exchanged: what the attention
//               kernels hide of the exchange costs nothing; cp - 1 times the outputs are rescaled and added
//   all-to-all  one kernel on whole sequences and 1/cp of the heads; queries, keys, values and outputs are exchanged
//               before and after, with two copies each to reorder chunks and heads
kernel_parts::Kernels context_attention_kernels(const Transformer& model, const Training& training, OpKind kind,
                                                const SliceShape& slice, const kernel_parts::Sizes& s);

}  // namespace sluice::model
