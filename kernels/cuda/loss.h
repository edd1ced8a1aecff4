#pragma once

#include <cstdint>

#include "kernels/cuda/elementwise.h"

namespace sluice::kernels::cuda {

// Cross-entropy of one tensor-parallel rank's part of the vocabulary: logits [rows, stride], whose first `columns`
// count, those of tokens from first_token on. They are kept once: they become their own gradient.
struct LogitsShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
  std::int64_t first_token = 0;
};

// Of each row; of the whole vocabulary once the group has combined them.
struct RowSums {
  float* maxima = nullptr;
  float* own_maxima = nullptr;  // a copy, that no group changes
  float* sums = nullptr;        // of exp(logit - maximum), then the targets' logits: [2, rows]
  float* losses = nullptr;
};
inline constexpr std::int64_t kRowSums = 5;  // floats a row

// Of this rank's logits: maxima and sums, targets' logits or 0.
void sum_logits(Stream& stream, Element element, const LogitsShape& shape, const Half* logits,
                const std::int32_t* targets, const RowSums& out);
// After the group's maximum: sums are those with it.
void rescale_sums(Stream& stream, std::int64_t rows, const RowSums& sums);
// After the group's sum: logits become `scale` (softmax - [target]), 0 in columns that do not count; *loss is the sum
// over rows of -ln p(target).
void logits_gradient(Stream& stream, Element element, const LogitsShape& shape, Half* logits,
                     const std::int32_t* targets, const RowSums& sums, float scale, float* loss);

}  // namespace sluice::kernels::cuda
