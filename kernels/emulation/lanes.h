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
inline int reread_thread() { return thread(); }
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
inline bool has_wide_atomics() { return emulation::compute_capability() >= 90; }
inline void atomic_add_4(float* to, const float (&values)[4]) {
  check_aligned(to, 16);
  for (int i = 0; i < 4; ++i) atomic_add(to + i, values[i]);
}
inline void atomic_or(std::int32_t* to, std::int32_t value) { std::atomic_ref<std::int32_t>(*to).fetch_or(value); }

inline float exponential(float x) { return std::exp(x); }
inline float exponential2(float x) { return std::exp2(x); }
inline float logarithm(float x) { return std::log(x); }
inline float inverse_root(float x) { return 1.0F / std::sqrt(x); }
inline float reciprocal(float x) { return 1.0F / x; }
inline float hyperbolic_tangent(float x) { return std::tanh(x); }
inline float error_function(float x) { return std::erf(x); }
inline float larger(float x, float y) { return std::fmax(x, y); }

template <class T>
std::uint32_t pack(T low, T high) {
  return static_cast<std::uint32_t>(low.bits) | static_cast<std::uint32_t>(high.bits) << 16;
}
template <class T>
std::uint32_t pack(float low, float high) {
  return pack(from_float<T>(low), from_float<T>(high));
}

inline void copy_async_16(void* shared, const void* global, bool valid) {
  check_aligned(shared, 16);
  if (valid) check_aligned(global, 16);
  emulation::copy_later(shared, valid ? global : nullptr, 16);
}
inline void copy_async_commit() { emulation::end_copy_group(); }
template <int N>
void copy_async_wait() {
  emulation::finish_copies(N);
}

template <bool Transposed>
void load_matrices(std::uint32_t (&r)[4], const void* row) {
  check_aligned(row, 16);
  emulation::Slot mine{};
  std::memcpy(mine.data(), &row, sizeof row);
  const emulation::Slot* const all = emulation::gather_over_warp(mine);
  const auto at = [&](int matrix, int i, int j) {
    const std::uint16_t* from = nullptr;
    std::memcpy(&from, all[matrix * 8 + i].data(), sizeof from);
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + j, sizeof bits);
    return static_cast<std::uint32_t>(bits);
  };
  const int i = lane() / 4;
  const int j = lane() % 4 * 2;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const std::uint32_t low = Transposed ? at(matrix, j, i) : at(matrix, i, j);
    const std::uint32_t high = Transposed ? at(matrix, j + 1, i) : at(matrix, i, j + 1);
    r[matrix] = low | high << 16;
  }
  // On a GPU no lane continues before all have read, so none may write earlier.
  emulation::sync_warp();
}

// D [16, 8] += A [16, 16] B [16, 8]. Lane 4 g + c holds rows g (registers 0 and 2) and g + 8 (1 and 3), columns 2 c and
// 2 c + 1 (0 and 1) and 2 c + 8 and 2 c + 9 (2 and 3) of A; the same columns as rows, in column g, of B; and rows g (0
// and 1) and g + 8, columns 2 c and 2 c + 1, of D.
template <class T>
void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  emulation::Slot mine{};
  std::memcpy(mine.data(), a, sizeof a);
  std::memcpy(mine.data() + sizeof a, b, sizeof b);
  const emulation::Slot* const all = emulation::gather_over_warp(mine);
  const auto number = [&](int lane, int word, int half) {
    const std::ptrdiff_t place = 2 * word + half;
    T value{};
    std::memcpy(&value, all[lane].data() + place * 2, sizeof value);
    return to_float(value);
  };
  for (int i = 0; i < 4; ++i) {
    const int row = lane() / 4 + (i >= 2 ? 8 : 0);
    const int column = lane() % 4 * 2 + i % 2;
    float sum = d[i];
    for (int k = 0; k < 16; ++k) {
      const float from_a = number(row % 8 * 4 + k % 8 / 2, (row >= 8 ? 1 : 0) + (k >= 8 ? 2 : 0), k % 2);
      const float from_b = number(column * 4 + k % 8 / 2, 4 + (k >= 8 ? 1 : 0), k % 2);
      sum += from_a * from_b;
    }
    d[i] = sum;
  }
}

}  // namespace sluice::kernels::cuda
