#pragma once

#include <cstdint>

#include "kernels/weights.h"

namespace sluice::kernels {

// Implements Stage::initialise. Padding is set to zero.
template <class T>
void initialise_weights(const StageSpec& spec, const WeightOffsets& offsets, std::uint64_t seed, T* weights);

}  // namespace sluice::kernels
