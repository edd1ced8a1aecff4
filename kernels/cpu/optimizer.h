#pragma once

#include <cstdint>

#include "kernels/weights.h"

namespace sluice::kernels::cpu {

// Sum of squares of the gradients of parameters that are counted.
template <class T>
double squared_norm(const WeightOffsets& offsets, const T* gradients);

// Stage::step. `moments` are the first moments of all weights, then the second; not used by SGD.
template <class T>
void optimizer_step(const WeightOffsets& offsets, const OptimizerStep& step, const T* weights, T* new_weights,
                    T* moments, const T* gradients);

}  // namespace sluice::kernels::cpu
