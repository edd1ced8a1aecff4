#pragma once

// Implements the functions of kernels/cuda/lanes.h without a GPU.

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "kernels/emulation/block.h"

#define SLUICE_DEVICE inline
#define SLUICE_UNROLL

namespace sluice::kernels::cuda {

inline constexpr bool kHasMatrixUnits = true;

struct float16 {
  std::uint16_t bits;
};
struct bfloat16 {
  std::uint16_t bits;
};

inline float to_float(float value) { return value; }
inline float to_float(bfloat16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }
inline float to_float(float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fU;
  const std::uint32_t fraction = value.bits & 0x3ffU;
  if (exponent == 0x1fU) return std::bit_cast<float>(sign | 0x7f800000U | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112U) << 23 | fraction << 13);
  const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
  return sign != 0 ? -magnitude : magnitude;
}

template <class T>
T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline bfloat16 from_float<bfloat16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return {0x7fff};
  return {static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16)};
}
template <>
inline float16 from_float<float16>(float value) {
  const auto sign = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16 & 0x8000U);
  if (std::isnan(value)) return {0x7fff};
  const float magnitude = std::fabs(value);
  if (magnitude == 0.0F) return {sign};
  // Numbers halfway beyond the largest finite one, and above, round to infinity.
  if (magnitude >= 65520.0F) return {static_cast<std::uint16_t>(sign | 0x7c00U)};
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // The spacing is 2^-24 below 2^-14, and 2^-10 of the next lower power of two above.
  const int step = exponent - 1 < -14 ? -24 : exponent - 11;
  const auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, -step)));
  if (step == -24) return {static_cast<std::uint16_t>(sign | steps)};
  return {static_cast<std::uint16_t>(sign | ((static_cast<std::uint32_t>(step + 25) << 10) + (steps - 1024U)))};
}

inline int block_x() { return emulation::place().block[0]; }
inline int block_y() { return emulation::place().block[1]; }
inline int block_z() { return emulation::place().block[2]; }
inline int blocks_x() { return emulation::place().blocks[0]; }
inline int blocks_y() { return emulation::place().blocks[1]; }
inline int thread() { return emulation::thread_index(); }
inline int threads() { return emulation::place().threads; }
inline int lane() { return emulation::thread_index() % 32; }
inline int warp() { return emulation::thread_index() / 32; }
inline unsigned char* shared_memory() { return emulation::shared_memory(); }
inline void sync_block() { emulation::sync_block(); }
inline void sync_warp() { emulation::sync_warp(); }

inline void check_aligned(const void* p, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(p) % bytes != 0)
    throw std::logic_error("a kernel accesses an address that is not aligned");
  emulation::count_access(p, bytes);
}

template <class T>
T shuffle(T value, int from) {
  static_assert(sizeof(T) == 4);
  emulation::Slot mine{};
  std::memcpy(mine.data(), &value, sizeof value);
  const emulation::Slot* const all = emulation::gather_over_warp(mine);
  std::memcpy(&value, all[from & 31].data(), sizeof value);
  return value;
}
template <class T>
T shuffle_xor(T value, int mask) {
  return shuffle(value, lane() ^ mask);
}

inline void atomic_add(float* to, float value) { std::atomic_ref<float>(*to).fetch_add(value); }
inline void atomic_add_4(float* to, const float (&values)[4]) {
  check_aligned(to, 16);
  for (int i = 0; i < 4; ++i) atomic_add(to + i, values[i]);
}
inline void atomic_or(std::int32_t* to, std::int32_t value) { std::atomic_ref<std::int32_t>(*to).fetch_or(value); }

inline float exponential(float x) { return std::exp(x); }
inline float logarithm(float x) { return std::log(x); }
inline float inverse_root(float x) { return 1.0F / std::sqrt(x); }
inline float reciprocal(float x) { return 1.0F / x; }
inline float larger(float x, float y) { return std::fmax(x, y); }

}  // namespace sluice::kernels::cuda
