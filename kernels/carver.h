#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/stage.h"

namespace sluice::kernels {

// Elements of a sub-buffer that the next one follows: a multiple of 16, so that buffers of float and double alike begin
// at multiples of kBufferAlignment, and what a kernel computes does not depend on where a block lies.
constexpr std::int64_t padded(std::int64_t elements) { return (elements + 15) / 16 * 16; }
static_assert(16 * sizeof(float) % kBufferAlignment == 0);

// Hands out one buffer after the other from a block; without a block it only counts. So a memory plan and the pointers
// into it are one piece of code.
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
