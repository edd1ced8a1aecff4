#pragma once

#include "model/blocks/kernel_parts.h"

namespace sluice::model {

// The kernels of a layer's experts, in place of its MLP: the router, dispatch and combine, the experts' GEMMs, and the
// shared expert. F, I or W. Tokens are assumed to be distributed evenly: each expert of each rank gets rows x per_token
// x ep / count of them. Each tensor rank routes its own shard of the tokens; a token is copied for each of its experts,
// sent (all-to-all over the expert-parallel group) and ordered by expert, and the same in reverse on the way back. The
// shared expert is split over the tensor ranks like a dense MLP. Not modeled: the host waits once per layer for the
// numbers of rows per expert, unless the experts are fused.
kernel_parts::Kernels expert_kernels(const Transformer& model, const Training& training, OpKind kind,
                                     const kernel_parts::Sizes& s);

}  // namespace sluice::model
