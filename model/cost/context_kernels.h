#pragma once

#include "model/cost/kernel_parts.h"

namespace sluice::model {

// Fused attention over context-parallel ranks, F or I (W has none). The 2 cp chunks of a sequence are dealt so that
// each rank has an equal share of the causal half square.
//   ring        cp kernels, on a rank's worth of keys and values each, while the next go round: what of the exchange is
//               hidden behind all but one of them costs nothing; cp - 1 times the outputs are rescaled and added
//   all-to-all  one kernel on whole sequences and 1/cp of the heads; queries, keys, values and outputs change hands
//               before and after, with two copies each to bring chunks and heads in order
kernel_parts::Kernels context_attention_kernels(const Transformer& model, const Training& training, OpKind kind,
                                                const SliceSize& slice, const kernel_parts::Sizes& s);

}  // namespace sluice::model
