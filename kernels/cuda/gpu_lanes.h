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

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
inline constexpr bool kHasMatrixUnits = true;
#else
inline constexpr bool kHasMatrixUnits = false;
#endif

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
SLUICE_DEVICE int reread_thread() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}
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
SLUICE_DEVICE constexpr bool has_wide_atomics() { return true; }
SLUICE_DEVICE void atomic_add_4(float* to, const float (&values)[4]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "f"(values[0]),
               "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
}
#else
SLUICE_DEVICE constexpr bool has_wide_atomics() { return false; }
SLUICE_DEVICE void atomic_add_4(float* to, const float (&values)[4]) {
  for (int i = 0; i < 4; ++i) atomicAdd(to + i, values[i]);
}
#endif
SLUICE_DEVICE void atomic_or(std::int32_t* to, std::int32_t value) { atomicOr(to, value); }

SLUICE_DEVICE float exponential(float x) { return __expf(x); }
SLUICE_DEVICE float exponential2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
SLUICE_DEVICE float logarithm(float x) { return logf(x); }
SLUICE_DEVICE float inverse_root(float x) { return rsqrtf(x); }
SLUICE_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
SLUICE_DEVICE float hyperbolic_tangent(float x) { return tanhf(x); }
SLUICE_DEVICE float error_function(float x) { return erff(x); }

SLUICE_DEVICE float larger(float x, float y) { return fmaxf(x, y); }

SLUICE_DEVICE std::uint32_t pack(float16 low, float16 high) {
  const __half2 both = __halves2half2(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
SLUICE_DEVICE std::uint32_t pack(bfloat16 low, bfloat16 high) {
  const __nv_bfloat162 both = __halves2bfloat162(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
template <class T>
SLUICE_DEVICE std::uint32_t pack(float low, float high);
template <>
SLUICE_DEVICE std::uint32_t pack<float16>(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
template <>
SLUICE_DEVICE std::uint32_t pack<bfloat16>(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
SLUICE_DEVICE void copy_async_16(void* shared, const void* global, bool valid) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
SLUICE_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
SLUICE_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

template <bool Transposed>
SLUICE_DEVICE void load_matrices(std::uint32_t (&r)[4], const void* row) {
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
  }
}

template <class T>
SLUICE_DEVICE void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
template <>
SLUICE_DEVICE void multiply_add<float16>(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
SLUICE_DEVICE void multiply_add<bfloat16>(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
// Kernels that need these are not launched on older GPUs, and `if constexpr (kHasMatrixUnits)` compiles them to
// nothing.
SLUICE_DEVICE void copy_async_16(void*, const void*, bool) { __trap(); }
SLUICE_DEVICE void copy_async_commit() { __trap(); }
template <int N>
SLUICE_DEVICE void copy_async_wait() {
  __trap();
}
template <bool Transposed>
SLUICE_DEVICE void load_matrices(std::uint32_t (&)[4], const void*) {
  __trap();
}
template <class T>
SLUICE_DEVICE void multiply_add(float (&)[4], const std::uint32_t (&)[4], const std::uint32_t (&)[2]) {
  __trap();
}
#endif

}  // namespace sluice::kernels::cuda
