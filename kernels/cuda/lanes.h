#pragma once

// The language of device kernels. A kernel is a struct that holds its arguments (at most 4 KiB) and has
//
//   static constexpr int kThreads = ...;        // maximum number of threads per block
//   static constexpr int kBlocks = ...;         // optional: minimum number of resident blocks per multiprocessor
//   SLUICE_DEVICE void operator()() const;      // the code of one thread
//
// and is enqueued on a stream by `launch` (kernels/cuda/launch.h). The functions below have the same meaning on a GPU
// and in the emulation, where the threads of a block are fibers of one host thread, so that every kernel is compiled
// and tested without a GPU. Shared memory is dynamic, with the size given at launch.
//
//   float16, bfloat16                     16-bit types; to_float(x), from_float<T>(x) (rounds to nearest even)
//   block_x(), block_y(), block_z(), blocks_x(), blocks_y(), thread(), threads(), lane(), warp()
//   sync_block(), sync_warp()
//   shuffle(value, from_lane), shuffle_xor(value, mask)    all 32 lanes of a warp; 4-byte values
//   shared_memory()                       of the block, 128-byte aligned, uninitialized
//   atomic_add(float*, float), atomic_or(std::int32_t*, std::int32_t)
//   atomic_add_4(float*, float[4])        one instruction on sm_90 and later, else four; 16-byte aligned
//   exponential(x), logarithm(x), inverse_root(x)
//   larger(x, y)                          maximum
//   reciprocal(x)                         error of up to one unit in the last place; 0 for x >= 2^126
//   SLUICE_UNROLL                         unrolls the next loop, so that arrays that it indexes stay in registers
//   load_vector<T, N>(p), store_vector(p, v)               N elements, p aligned to their size

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
