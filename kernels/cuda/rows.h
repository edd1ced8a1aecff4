#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.h"

namespace sluice::kernels::cuda {

// Helpers of kernels that process one row of a matrix per block, in chunks of kChunk elements per thread.
inline constexpr int kRowThreads = 256;
inline constexpr int kChunk = 8;

inline Grid row_grid(std::int64_t rows, std::int64_t width) {
  const std::int64_t chunks = (width + kChunk - 1) / kChunk;
  const std::int64_t threads = (chunks + kWarp - 1) / kWarp * kWarp;
  return {.blocks_x = static_cast<int>(rows),
          .threads = static_cast<int>(std::clamp<std::int64_t>(threads, kWarp, kRowThreads)),
          .shared_bytes = 2 * kRowThreads / kWarp * static_cast<int>(sizeof(float))};
}

// Returns whether rows of these widths (or strides) can be loaded in aligned chunks. Buffers are aligned; rows may not
// be.
inline bool in_whole_chunks(std::initializer_list<std::int64_t> widths) {
  return std::all_of(widths.begin(), widths.end(), [](std::int64_t width) { return width % kChunk == 0; });
}

// Loads the chunk of `row` from `column` on, with zeros from `width` on. `whole`: the chunk is complete and aligned.
template <class T>
SLUICE_DEVICE void load_chunk(const T* row, int column, int width, bool whole, float (&out)[kChunk]) {
  if (whole) {
    const Vector<T, kChunk> numbers = load_vector<T, kChunk>(row + column);
    for (int i = 0; i < kChunk; ++i) out[i] = to_float(numbers.at[i]);
  } else {
    for (int i = 0; i < kChunk; ++i) out[i] = column + i < width ? to_float(row[column + i]) : 0.0F;
  }
}
// The same for an optional vector: zeros if `row` is null.
template <class T>
SLUICE_DEVICE void load_optional_chunk(const T* row, int column, int width, bool whole, float (&out)[kChunk]) {
  if (row == nullptr) {
    for (float& number : out) number = 0;
  } else {
    load_chunk(row, column, width, whole, out);
  }
}
template <class T>
SLUICE_DEVICE void store_chunk(T* row, int column, int width, bool whole, const float (&in)[kChunk]) {
  if (whole) {
    Vector<T, kChunk> numbers;
    for (int i = 0; i < kChunk; ++i) numbers.at[i] = from_float<T>(in[i]);
    store_vector<T, kChunk>(row + column, numbers);
  } else {
    for (int i = 0; i < kChunk; ++i) {
      if (column + i < width) row[column + i] = from_float<T>(in[i]);
    }
  }
}

SLUICE_DEVICE bool all_finite(const float (&numbers)[kChunk]) {
  bool finite = true;
  for (const float number : numbers) finite = finite && number - number == 0.0F;
  return finite;
}

template <class Visit>
SLUICE_DEVICE void for_each_chunk(int width, const Visit& visit) {
  for (int column = thread() * kChunk; column < width; column += threads() * kChunk) visit(column);
}

// Reductions over all threads of the block, returned to all. Need one float of shared memory per warp. Deterministic.
SLUICE_DEVICE float block_sum(float value) {
  auto* const parts = reinterpret_cast<float*>(shared_memory());
  value = warp_sum(value);
  sync_block();  // the previous contents have been read
  if (lane() == 0) parts[warp()] = value;
  sync_block();
  float sum = 0;
  for (int i = 0; i < threads() / kWarp; ++i) sum += parts[i];
  return sum;
}
SLUICE_DEVICE float block_maximum(float value) {
  auto* const parts = reinterpret_cast<float*>(shared_memory());
  value = warp_maximum(value);
  sync_block();
  if (lane() == 0) parts[warp()] = value;
  sync_block();
  float highest = parts[0];
  for (int i = 1; i < threads() / kWarp; ++i) highest = larger(highest, parts[i]);
  return highest;
}

template <class T>
struct HalfType {};

// Calls visit(HalfType<T>()) with the 16-bit type that `element` names.
template <class Visit>
void with_half(Element element, const Visit& visit) {
  switch (element) {
    case Element::float16: visit(HalfType<float16>()); break;
    case Element::bfloat16: visit(HalfType<bfloat16>()); break;
    case Element::float32: throw std::logic_error("device activations must be 16-bit");
  }
}

template <class T>
const T* as(const Half* numbers) {
  return reinterpret_cast<const T*>(numbers);
}
template <class T>
T* as(Half* numbers) {
  return reinterpret_cast<T*>(numbers);
}

}  // namespace sluice::kernels::cuda
