#pragma once

#include "model/blocks/kernel_parts.h"

namespace sluice::model {

// The projections of latent attention, in place of QKV: down to the latents of queries and of keys and values (every
// tensor rank on its own shard of the tokens under sequence parallelism), their norms, up to this device's heads, and
// the copies that join each head's two parts. F, I or W. Tensor-parallel traffic: under sequence parallelism the
// latents are all-gathered in F and their gradients reduce-scattered in I; otherwise the gradients are all-reduced in
// I.
kernel_parts::Kernels latent_kernels(const Transformer& model, const Training& training, OpKind kind,
                                     const kernel_parts::Sizes& s);

}  // namespace sluice::model
