#pragma once

#include "model/blocks/kernel_call.h"
#include "model/workload/training.h"

namespace sluice::model {

// LoRA (Hu et al. 2021, arXiv:2106.09685): beside the frozen weight [k, n] of each linear layer are trained adapters
// [k, r] and [r, n] of the rank r, whose result is added to that of the layer. The experts of a rank share one pair.
// Only adapters have weight gradients.
//
// Returns a layer's kernels with those of its adapters, in 16 bits, and without the weight gradients of what is frozen.
Kernels with_adapters(const Kernels& kernels, const Training& training);

// Elements of the adapters of a layer on one device, from the kernels of its forward pass.
std::int64_t adapter_elements(const Kernels& forward, const Training& training);

}  // namespace sluice::model
