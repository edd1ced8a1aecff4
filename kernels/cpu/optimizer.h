#pragma once

#include <cstdint>

#include "kernels/weights.h"

namespace sluice::kernels::cpu {

// Returns the sum of squares of the gradients of `counted` parameters.
template <class T>
double squared_norm(const WeightOffsets& offsets, const T* gradients);

// Implements Stage::step. `adam_moments` holds the first moments of all weights, then the second; not used by SGD.
template <class T>
void optimizer_step(const WeightOffsets& offsets, const OptimizerStep& step, const T* weights, T* new_weights,
                    T* adam_moments, const T* gradients);

}  // namespace sluice::kernels::cpu
