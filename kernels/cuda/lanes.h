#pragma once

// What kernels are written in. A kernel is a struct that holds its arguments (at most 4 KiB) and has
//
//   static constexpr int kThreads = ...;        // most threads of a block that it is launched with
//   static constexpr int kBlocks = ...;         // optional: blocks that a multiprocessor is to hold at once
//   SLUICE_DEVICE void operator()() const;      // what one thread does
//
// and is put on a stream by `launch` (kernels/cuda/launch.h). The names below mean the same on a GPU and in the
// emulation, where a block's threads are fibers of one thread of the host: so every kernel is compiled and proven where
// there is no GPU. All shared memory is dynamic, its size given at launch.
//
//   float16, bfloat16                     16-bit numbers; to_float(x), from_float<T>(x) (rounds to nearest, even)
//   block_x(), block_y(), block_z(), blocks_x(), blocks_y(), thread(), threads(), lane(), warp()
//   sync_block(), sync_warp()
//   shuffle(value, from_lane), shuffle_xor(value, mask)    of all 32 lanes of a warp; 4-byte values
//   shared_memory()                       the block's, 128-byte aligned; holds anything at first
//   atomic_add(float*, float), atomic_or(std::int32_t*, std::int32_t)
//   atomic_add_4(float*, float[4])        one instruction from sm_90 (has_wide_atomics()), else four; 16-byte aligned
//   exponential(x), exponential2(x), logarithm(x), inverse_root(x), hyperbolic_tangent(x), error_function(x),
//   larger(x, y)                          of two numbers
//   reciprocal(x)                         to a unit in the last place; 0 from 2^126 on
//   SLUICE_UNROLL                         before a loop whose body indexes arrays that are to stay in registers
//   load_vector<T, N>(p), store_vector(p, v)               N elements at once, p aligned to all of them
//   From sm_80, and only there (kHasMatrixUnits says whether this compilation is for that):
//   copy_async_16(shared, global, valid)  16 bytes, zeros if not valid; then copy_async_commit(), copy_async_wait<N>()
//                                         (all but the N latest groups of this thread have come)
//   load_matrices<Transposed>(r, row)     ldmatrix.x4: lane i names row i % 8 of matrix i / 8; r[m] has its part of m
//   multiply_add<T>(d, a, b)              mma.m16n8k16, row.col, float32 accumulators (PTX ISA, 9.7.14)
//   pack<T>(low, high)                    two numbers in 32 bits

#ifdef __CUDACC__
#include "kernels/cuda/gpu_lanes.h"
#else
#include "kernels/emulation/lanes.h"
#endif

namespace sluice::kernels::cuda {

inline constexpr int kWarp = 32;

template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
};
template <class T, int N>
SLUICE_DEVICE Vector<T, N> load_vector(const T* from) {
  check_aligned(from, sizeof(T) * N);
  return *reinterpret_cast<const Vector<T, N>*>(from);
}
template <class T, int N>
SLUICE_DEVICE void store_vector(T* to, const Vector<T, N>& value) {
  check_aligned(to, sizeof(T) * N);
  *reinterpret_cast<Vector<T, N>*>(to) = value;
}

SLUICE_DEVICE float warp_sum(float value) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}
SLUICE_DEVICE float warp_maximum(float value) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const float other = shuffle_xor(value, mask);
    value = value > other ? value : other;
  }
  return value;
}

}  // namespace sluice::kernels::cuda
