#pragma once

#include "model/cost/kernel_parts.h"

namespace sluice::model {

// Latent attention's projections, in place of QKV's: down to the latents of queries and of keys and values (on every
// tensor rank, of its own share of the tokens under sequence parallelism), their norms, up to this device's heads, and
// the copies that put each head's two parts together. F, I or W.
// Tensor-parallel traffic: under sequence parallelism the latents are gathered in F, and their gradients reduced and
// scattered in I; otherwise these are all-reduced in I.
kernel_parts::Kernels latent_kernels(const Transformer& model, const Training& training, OpKind kind,
                                     const kernel_parts::Sizes& s);

}  // namespace sluice::model
