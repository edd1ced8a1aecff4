#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/stage.h"

namespace sluice::kernels {

// Rounds a number of elements up to a multiple of 16, so that keys, values and parameters of float and double begin at
// multiples of kBufferAlignment, and results do not depend on the position of a block.
constexpr std::int64_t padded(std::int64_t elements) { return (elements + 15) / 16 * 16; }
static_assert(16 * sizeof(float) % kBufferAlignment == 0);

// Returns the offset of values from keys, in elements. Keys are [rows, key_width], dense, followed by the values, each
// padded to 16 elements.
constexpr std::int64_t values_after(std::int64_t rows, std::int64_t key_width) { return padded(rows * key_width); }

// Bump allocator: takes consecutive buffers from a block, each from a multiple of kBufferAlignment on. Without a block
// it only adds up sizes, so that the same code computes a memory plan and the pointers into it.
class Carver {
 public:
  explicit Carver(std::byte* block = nullptr) : block_(block) {}

  template <class T>
  T* take(std::int64_t count) {
    constexpr auto kAlignment = static_cast<std::int64_t>(kBufferAlignment);
    std::byte* const begin = block_ == nullptr ? nullptr : block_ + bytes_;
    bytes_ += (count * static_cast<std::int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<T*>(begin);
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* block_;
  std::int64_t bytes_ = 0;
};

}  // namespace sluice::kernels
