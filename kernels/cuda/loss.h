#pragma once

#include <cstdint>

#include "kernels/cuda/elementwise.h"

namespace sluice::kernels::cuda {

// Statistics per row; of the whole vocabulary after the all-reduce.
struct RowSums {
  float* maxima = nullptr;
  float* own_maxima = nullptr;  // a copy, not all-reduced
  float* sums = nullptr;        // [2, rows]: sums of exp(logit - maximum), then the targets' logits
  float* losses = nullptr;
};
inline constexpr std::int64_t kRowSums = 5;  // floats per row

// Writes the maxima and sums of this rank's logits, and the targets' logits, or 0 for targets of other ranks.
void sum_logits(Stream& stream, Element element, const LogitsShape& shape, const Half* logits,
                const std::int32_t* targets, const RowSums& out);
// Rescales the sums to the all-reduced maxima.
void rescale_sums(Stream& stream, std::int64_t rows, const RowSums& sums);
// After the all-reduce of the sums: replaces logits by `scale` (softmax - one_hot(target)), 0 in padding, and writes
// the sum over rows of -ln p(target) to *loss. Sets *not_finite, if it is not null, to 1 if that is not finite.
void logits_gradient(Stream& stream, Element element, const LogitsShape& shape, Half* logits,
                     const std::int32_t* targets, const RowSums& sums, float scale, float* loss,
                     std::int32_t* not_finite = nullptr);

}  // namespace sluice::kernels::cuda
