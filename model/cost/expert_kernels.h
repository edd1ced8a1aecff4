#pragma once

#include "model/cost/kernel_parts.h"

namespace sluice {

// A layer's experts in place of its MLP: router, the way to the experts and back, their products, and the shared one.
// F, I or W. Tokens are taken to be spread evenly: each expert of each rank gets rows x per_token x ep / count of them.
// Routing is on this tensor rank's share of the tokens; a token is copied for each of its experts, sent (all-to-all
// over the expert-parallel group), put in order of the experts, and all that again on the way back. The shared expert
// is split over the tensor ranks as a dense MLP is.
kernel_parts::Kernels expert_kernels(const Transformer& model, const Training& training, OpKind kind,
                                     const kernel_parts::Sizes& s);

// Seconds that a product of experts takes the host for each of them: the library issues them one by one, on several
// streams. Fitted with the time of a batch of products (the root of both squares) to 120 grouped products of
// Transformer Engine: mean error 13 % on the B200, 5 % on the A100, none of it bias (MooreThreads/SimuMax
// configs/system/b200_bf16_ceperm.json and a100_pcie.json, Apache-2.0).
inline constexpr double kExpertIssueSeconds = 9e-6;

}  // namespace sluice
