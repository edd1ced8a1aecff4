#pragma once

#include <cstdint>

#include "kernels/cpu/weights.h"

namespace sluice::cpu {

// Stage::initialise. Padding becomes zero.
template <class T>
void initialise_weights(const StageSpec& spec, const WeightOffsets& offsets, std::uint64_t seed, T* weights);

}  // namespace sluice::cpu
