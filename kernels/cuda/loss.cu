#include <cfloat>

#include "kernels/cuda/loss.h"
#include "kernels/cuda/over_elements.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

template <class T>
struct SumLogits {
  static constexpr int kThreads = kRowThreads;
  LogitsShape shape;
  bool whole;
  const T* logits;
  const std::int32_t* targets;
  RowSums out;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t row = block_x();
    const T* const of_row = logits + row * shape.stride;
    const auto columns = static_cast<int>(shape.columns);
    // Online sum, rescaled to each new maximum, so that the logits are read once.
    float highest = -FLT_MAX;
    float sum = 0;
    for_each_chunk(columns, [&](int column) {
      float numbers[kChunk];
      load_chunk(of_row, column, static_cast<int>(shape.stride), whole, numbers);
      float highest_here = highest;
      for (int i = 0; i < kChunk; ++i) {
        if (column + i < columns) highest_here = larger(highest_here, numbers[i]);
      }
      sum *= exponential(highest - highest_here);
      highest = highest_here;
      for (int i = 0; i < kChunk; ++i) {
        if (column + i < columns) sum += exponential(numbers[i] - highest);
      }
    });
    const float maximum = block_maximum(highest);
    sum = block_sum(sum * exponential(highest - maximum));
    if (thread() != 0) return;
    const std::int64_t target = targets[row] - shape.first_token;
    out.maxima[row] = maximum;
    out.own_maxima[row] = maximum;
    out.sums[row] = sum;
    out.sums[shape.rows + row] = target >= 0 && target < columns ? to_float(of_row[target]) : 0.0F;
  }
};

struct RescaleSums {
  static constexpr int kThreads = kElementThreads;
  std::int64_t rows;
  RowSums of;
  SLUICE_DEVICE void operator()() const {
    for_each_element(rows, [this](std::int64_t i) { of.sums[i] *= exponential(of.own_maxima[i] - of.maxima[i]); });
  }
};

template <class T>
struct LogitsGradient {
  static constexpr int kThreads = kRowThreads;
  LogitsShape shape;
  bool whole;
  T* logits;
  const std::int32_t* targets;
  RowSums sums;
  float scale;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t row = block_x();
    T* const of_row = logits + row * shape.stride;
    const auto columns = static_cast<int>(shape.columns);
    const auto stride = static_cast<int>(shape.stride);
    const float maximum = sums.maxima[row];
    const float sum = sums.sums[row];
    const float inverse = 1.0F / sum;
    const std::int64_t target = targets[row] - shape.first_token;
    for_each_chunk(stride, [&](int column) {
      float numbers[kChunk];
      load_chunk(of_row, column, stride, whole, numbers);
      for (int i = 0; i < kChunk; ++i) {
        const float probability = exponential(numbers[i] - maximum) * inverse;
        const float wanted = column + i == target ? 1.0F : 0.0F;
        numbers[i] = column + i < columns ? scale * (probability - wanted) : 0.0F;
      }
      store_chunk(of_row, column, stride, whole, numbers);
    });
    if (thread() == 0) sums.losses[row] = logarithm(sum) + (maximum - sums.sums[shape.rows + row]);
  }
};

struct SumLosses {
  static constexpr int kThreads = kRowThreads;
  const float* losses;
  std::int64_t rows;
  float* loss;
  std::int32_t* not_finite;
  SLUICE_DEVICE void operator()() const {
    float sum = 0;
    for (std::int64_t i = thread(); i < rows; i += threads()) sum += losses[i];
    sum = block_sum(sum);
    if (thread() != 0) return;
    *loss = sum;
    if (not_finite != nullptr && sum - sum != 0.0F) *not_finite = 1;
  }
};

}  // namespace

void sum_logits(Stream& stream, Element element, const LogitsShape& shape, const Half* logits,
                const std::int32_t* targets, const RowSums& out) {
  const bool whole = in_whole_chunks({shape.stride});
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, row_grid(shape.rows, shape.columns), SumLogits<T>{shape, whole, as<T>(logits), targets, out});
  });
}

void rescale_sums(Stream& stream, std::int64_t rows, const RowSums& sums) {
  launch(stream, element_grid(rows), RescaleSums{rows, sums});
}

void logits_gradient(Stream& stream, Element element, const LogitsShape& shape, Half* logits,
                     const std::int32_t* targets, const RowSums& sums, float scale, float* loss,
                     std::int32_t* not_finite) {
  const bool whole = in_whole_chunks({shape.stride});
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, row_grid(shape.rows, shape.stride),
           LogitsGradient<T>{shape, whole, as<T>(logits), targets, sums, scale});
  });
  launch(stream, row_grid(1, shape.rows * kChunk), SumLosses{sums.losses, shape.rows, loss, not_finite});
}

}  // namespace sluice::kernels::cuda
