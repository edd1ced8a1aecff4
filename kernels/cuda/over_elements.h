#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cuda/launch.h"

namespace sluice::kernels::cuda {

// Helpers of kernels with a grid-stride loop over the elements of a buffer.
inline constexpr int kElementThreads = 256;

template <class Visit>
SLUICE_DEVICE void for_each_element(std::int64_t count, const Visit& visit) {
  const std::int64_t step = static_cast<std::int64_t>(blocks_x()) * threads();
  for (std::int64_t i = static_cast<std::int64_t>(block_x()) * threads() + thread(); i < count; i += step) visit(i);
}

// Returns a grid with enough blocks to fill any GPU; threads process several elements of large buffers.
inline Grid element_grid(std::int64_t count) {
  constexpr std::int64_t kMostBlocks = 2048;
  const std::int64_t warps = std::clamp<std::int64_t>((count + kWarp - 1) / kWarp, 1, kElementThreads / kWarp);
  const std::int64_t blocks = (count + kElementThreads - 1) / kElementThreads;
  return {.blocks_x = static_cast<int>(std::clamp<std::int64_t>(blocks, 1, kMostBlocks)),
          .threads = static_cast<int>(warps) * kWarp};
}

template <class T>
struct Type {};

// Calls visit(Type<T>()) with the type that `element` names.
template <class Visit>
void with_type(Element element, const Visit& visit) {
  switch (element) {
    case Element::float16: visit(Type<float16>()); break;
    case Element::bfloat16: visit(Type<bfloat16>()); break;
    case Element::float32: visit(Type<float>()); break;
  }
}

}  // namespace sluice::kernels::cuda
