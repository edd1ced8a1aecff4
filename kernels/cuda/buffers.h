#pragma once

#include <array>
#include <cstdint>

#include "kernels/device.h"

namespace sluice::kernels::cuda {

// See DeviceKernels.
void add(Stream& stream, Element element, const void* from, std::int64_t count, void* into);
// into += from, or into = from, for 16-bit `from`.
void widen(Stream& stream, Element element, const void* from, std::int64_t count, bool add, float* into);
void maximum(Stream& stream, const float* from, std::int64_t count, float* into);
void flag_not_finite(Stream& stream, Element element, const void* data, std::int64_t count, std::int32_t* flag);
void fill_not_a_number(Stream& stream, Element element, void* data, std::int64_t count);
void gradient_scale(Stream& stream, const float* squares, float clip, float loss_scale, float* scale, float* norm);

}  // namespace sluice::kernels::cuda
