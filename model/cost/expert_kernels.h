#pragma once

#include "model/cost/kernel_parts.h"

namespace sluice::model {

// A layer's experts in place of its MLP: router, the way to the experts and back, their products, and the shared one.
// F, I or W. Tokens are taken to be spread evenly: each expert of each rank gets rows x per_token x ep / count of them.
// Routing is on this tensor rank's share of the tokens; a token is copied for each of its experts, sent (all-to-all
// over the expert-parallel group), put in order of the experts, and all that again on the way back. The shared expert
// is split over the tensor ranks as a dense MLP is.
kernel_parts::Kernels expert_kernels(const Transformer& model, const Training& training, OpKind kind,
                                     const kernel_parts::Sizes& s);

}  // namespace sluice::model
