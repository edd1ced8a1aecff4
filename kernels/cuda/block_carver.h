#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/stage.h"

namespace sluice::kernels::cuda {

// Carver for several types: each buffer starts at a multiple of kBufferAlignment in the block.
class BlockCarver {
 public:
  explicit BlockCarver(std::byte* block = nullptr) : block_(block) {}

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

}  // namespace sluice::kernels::cuda
