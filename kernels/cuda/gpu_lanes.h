#pragma once

// Implements the functions of lanes.h on a GPU.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "model/namespaces.h"

#define SLUICE_DEVICE __device__ __forceinline__
#define SLUICE_UNROLL _Pragma("unroll")

namespace sluice::kernels::cuda {

using float16 = __half;
using bfloat16 = __nv_bfloat16;

SLUICE_DEVICE float to_float(float value) { return value; }
SLUICE_DEVICE float to_float(float16 value) { return __half2float(value); }
SLUICE_DEVICE float to_float(bfloat16 value) { return __bfloat162float(value); }
template <class T>
SLUICE_DEVICE T from_float(float value);
template <>
SLUICE_DEVICE float from_float<float>(float value) {
  return value;
}
template <>
SLUICE_DEVICE float16 from_float<float16>(float value) {
  return __float2half_rn(value);
}
template <>
SLUICE_DEVICE bfloat16 from_float<bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

SLUICE_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
SLUICE_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
SLUICE_DEVICE int block_z() { return static_cast<int>(blockIdx.z); }
SLUICE_DEVICE int blocks_x() { return static_cast<int>(gridDim.x); }
SLUICE_DEVICE int blocks_y() { return static_cast<int>(gridDim.y); }
SLUICE_DEVICE int thread() { return static_cast<int>(threadIdx.x); }
SLUICE_DEVICE int threads() { return static_cast<int>(blockDim.x); }
SLUICE_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
SLUICE_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }

SLUICE_DEVICE void sync_block() { __syncthreads(); }
SLUICE_DEVICE void sync_warp() { __syncwarp(); }
template <class T>
SLUICE_DEVICE T shuffle(T value, int from) {
  static_assert(sizeof(T) == 4);
  return __shfl_sync(0xffffffffU, value, from);
}
template <class T>
SLUICE_DEVICE T shuffle_xor(T value, int mask) {
  static_assert(sizeof(T) == 4);
  return __shfl_xor_sync(0xffffffffU, value, mask);
}

SLUICE_DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char sluice_shared[];
  return sluice_shared;
}
SLUICE_DEVICE void check_aligned(const void*, unsigned long) {}

SLUICE_DEVICE void atomic_add(float* to, float value) { atomicAdd(to, value); }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
SLUICE_DEVICE void atomic_add_4(float* to, const float (&values)[4]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "f"(values[0]),
               "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
}
#else
SLUICE_DEVICE void atomic_add_4(float* to, const float (&values)[4]) {
  for (int i = 0; i < 4; ++i) atomicAdd(to + i, values[i]);
}
#endif
SLUICE_DEVICE void atomic_or(std::int32_t* to, std::int32_t value) { atomicOr(to, value); }

SLUICE_DEVICE float exponential(float x) { return __expf(x); }
SLUICE_DEVICE float logarithm(float x) { return logf(x); }
SLUICE_DEVICE float inverse_root(float x) { return rsqrtf(x); }
SLUICE_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
SLUICE_DEVICE float larger(float x, float y) { return fmaxf(x, y); }

}  // namespace sluice::kernels::cuda
