#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/stage.h"

namespace sluice::kernels {

// Rounds a number of elements up to a multiple of 16, so that sub-buffers of float and double begin at multiples of
// kBufferAlignment, and results do not depend on the position of a block.
constexpr std::int64_t padded(std::int64_t elements) { return (elements + 15) / 16 * 16; }
static_assert(16 * sizeof(float) % kBufferAlignment == 0);

// Bump allocator: takes consecutive buffers from a block. Without a block it only adds up sizes, so that the same code
// computes a memory plan and the pointers into it.
template <class T>
class Carver {
 public:
  explicit Carver(std::byte* block = nullptr) : next_(reinterpret_cast<T*>(block)) {}

  T* take(std::int64_t elements) {
    const std::int64_t size = padded(elements);
    elements_ += size;
    if (next_ == nullptr) return nullptr;
    T* const out = next_;
    next_ += size;
    return out;
  }
  std::int64_t elements() const { return elements_; }
  std::int64_t bytes() const { return elements_ * static_cast<std::int64_t>(sizeof(T)); }

 private:
  T* next_;
  std::int64_t elements_ = 0;
};

}  // namespace sluice::kernels
