#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

template <class T>
struct ResidualNorm {
  static constexpr int kThreads = kRowThreads;
  T* x;
  const T* residual;
  const T* residual_bias;
  int width;
  bool whole;
  const T* gain;
  const T* bias;
  bool rms;
  float* statistics;
  T* out;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t at = static_cast<std::int64_t>(block_x()) * width;
    T* const row = x + at;
    float sum = 0;
    if (residual != nullptr || !rms) {
      for_each_chunk(width, [&](int column) {
        float numbers[kChunk];
        load_chunk(row, column, width, whole, numbers);
        if (residual != nullptr) {
          float others[kChunk];
          float biases[kChunk];
          load_chunk(residual + at, column, width, whole, others);
          load_optional_chunk(residual_bias, column, width, whole, biases);
          // The norm is that of the rounded sum.
          for (int i = 0; i < kChunk; ++i) numbers[i] = to_float(from_float<T>(numbers[i] + biases[i] + others[i]));
          store_chunk(row, column, width, whole, numbers);
        }
        for (const float number : numbers) sum += number;
      });
    }
    if (out == nullptr) return;
    const float mean = rms ? 0.0F : block_sum(sum) / static_cast<float>(width);
    float squares = 0;
    for_each_chunk(width, [&](int column) {
      float numbers[kChunk];
      load_chunk(row, column, width, whole, numbers);
      for (int i = 0; i < kChunk; ++i) {
        const float difference = column + i < width ? numbers[i] - mean : 0.0F;
        squares += difference * difference;
      }
    });
    squares = block_sum(squares);
    const float inverse = inverse_root(squares / static_cast<float>(width) + kNormEpsilon);
    if (thread() == 0) {
      statistics[kNormStatistics * block_x()] = mean;
      statistics[kNormStatistics * block_x() + 1] = inverse;
    }
    for_each_chunk(width, [&](int column) {
      float numbers[kChunk];
      float gains[kChunk];
      float biases[kChunk];
      load_chunk(row, column, width, whole, numbers);
      load_chunk(gain, column, width, whole, gains);
      load_optional_chunk(bias, column, width, whole, biases);
      for (int i = 0; i < kChunk; ++i) numbers[i] = (numbers[i] - mean) * inverse * gains[i] + biases[i];
      store_chunk(out + at, column, width, whole, numbers);
    });
  }
};

template <class T>
struct NormGradient {
  static constexpr int kThreads = kRowThreads;
  const T* gradient;
  const T* x;
  const T* residual;
  const T* gain;
  bool rms;
  const float* statistics;
  int width;
  bool whole;
  T* dx;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t at = static_cast<std::int64_t>(block_x()) * width;
    const float mean = statistics[kNormStatistics * block_x()];
    const float inverse = statistics[kNormStatistics * block_x() + 1];
    float sum = 0;
    float products = 0;
    for_each_chunk(width, [&](int column) {
      float gradients[kChunk];
      float gains[kChunk];
      float numbers[kChunk];
      load_chunk(gradient + at, column, width, whole, gradients);
      load_chunk(gain, column, width, whole, gains);
      load_chunk(x + at, column, width, whole, numbers);
      for (int i = 0; i < kChunk; ++i) {
        const float scaled = gradients[i] * gains[i];
        sum += scaled;
        products += scaled * (numbers[i] - mean) * inverse;
      }
    });
    sum = rms ? 0.0F : block_sum(sum) / static_cast<float>(width);
    products = block_sum(products) / static_cast<float>(width);
    for_each_chunk(width, [&](int column) {
      float gradients[kChunk];
      float gains[kChunk];
      float numbers[kChunk];
      float others[kChunk];
      load_chunk(gradient + at, column, width, whole, gradients);
      load_chunk(gain, column, width, whole, gains);
      load_chunk(x + at, column, width, whole, numbers);
      load_optional_chunk(residual == nullptr ? residual : residual + at, column, width, whole, others);
      for (int i = 0; i < kChunk; ++i) {
        const float normal = (numbers[i] - mean) * inverse;
        numbers[i] = others[i] + inverse * (gradients[i] * gains[i] - sum - normal * products);
      }
      store_chunk(dx + at, column, width, whole, numbers);
    });
  }
};

// Column sums: lanes are columns, and rows are distributed over warps, whose sums are then added in order. With `x`,
// the gradients of a norm's gain and bias; without, the column sums of the matrix, in `sums`.
template <class T>
struct ColumnSums {
  static constexpr int kThreads = 1024;
  static constexpr int kRowsPerLoad = 8;
  const T* matrix;
  const T* x;
  const float* statistics;
  std::int64_t rows;
  std::int64_t width;
  float* gain_sums;
  float* sums;

  SLUICE_DEVICE void operator()() const {
    auto* const parts = reinterpret_cast<float*>(shared_memory());  // [2, warps, lanes]
    const int warps = threads() / kWarp;
    const std::int64_t column = static_cast<std::int64_t>(block_x()) * kWarp + lane();
    float sum = 0;
    float gain_sum = 0;
    if (column < width) {
      for (std::int64_t first = warp(); first < rows; first += static_cast<std::int64_t>(warps) * kRowsPerLoad) {
        float numbers[kRowsPerLoad];
        for (int i = 0; i < kRowsPerLoad; ++i) {
          const std::int64_t row = first + static_cast<std::int64_t>(i) * warps;
          numbers[i] = row < rows ? to_float(matrix[row * width + column]) : 0.0F;
        }
        if (x != nullptr) {
          float others[kRowsPerLoad];
          for (int i = 0; i < kRowsPerLoad; ++i) {
            const std::int64_t row = first + static_cast<std::int64_t>(i) * warps;
            const float* const of_row = statistics + kNormStatistics * row;
            others[i] = row < rows ? (to_float(x[row * width + column]) - of_row[0]) * of_row[1] : 0.0F;
          }
          for (int i = 0; i < kRowsPerLoad; ++i) gain_sum += numbers[i] * others[i];
        }
        for (const float number : numbers) sum += number;
      }
    }
    parts[warp() * kWarp + lane()] = sum;
    parts[(warps + warp()) * kWarp + lane()] = gain_sum;
    sync_block();
    if (warp() != 0 || column >= width) return;
    sum = 0;
    gain_sum = 0;
    for (int i = 0; i < warps; ++i) {
      sum += parts[i * kWarp + lane()];
      gain_sum += parts[(warps + i) * kWarp + lane()];
    }
    if (sums != nullptr) sums[column] += sum;
    if (gain_sums != nullptr) gain_sums[column] += gain_sum;
  }
};

template <class T>
void sum_columns(Stream& stream, const ColumnSums<T>& kernel) {
  // Enough rows per warp to keep loads in flight.
  const auto warps = static_cast<int>(
      std::clamp<std::int64_t>(kernel.rows / ColumnSums<T>::kRowsPerLoad, 1, ColumnSums<T>::kThreads / kWarp));
  launch(stream,
         Grid{.blocks_x = static_cast<int>((kernel.width + kWarp - 1) / kWarp),
              .threads = warps * kWarp,
              .shared_bytes = 2 * warps * kWarp * static_cast<int>(sizeof(float))},
         kernel);
}

}  // namespace

void residual_norm(Stream& stream, Element element, Half* x, const Half* residual, const Half* residual_bias,
                   std::int64_t rows, std::int64_t width, const NormWeights& weights, float* statistics, Half* out) {
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, row_grid(rows, width),
           ResidualNorm<T>{as<T>(x), as<T>(residual), as<T>(residual_bias), static_cast<int>(width),
                           in_whole_chunks({width}), as<T>(weights.gain), as<T>(weights.bias), weights.rms, statistics,
                           as<T>(out)});
  });
}

void norm_gradient(Stream& stream, Element element, const Half* gradient, const Half* x, const Half* residual,
                   const NormWeights& weights, const float* statistics, std::int64_t rows, std::int64_t width, Half* dx,
                   float* gain_gradient, float* bias_gradient) {
  with_half(element, [&]<class T>(HalfType<T>) {
    // First, as dx may equal the gradient.
    sum_columns(stream,
                ColumnSums<T>{as<T>(gradient), as<T>(x), statistics, rows, width, gain_gradient, bias_gradient});
    launch(stream, row_grid(rows, width),
           NormGradient<T>{as<T>(gradient), as<T>(x), as<T>(residual), as<T>(weights.gain), weights.rms, statistics,
                           static_cast<int>(width), in_whole_chunks({width}), as<T>(dx)});
  });
}

void add_column_sums(Stream& stream, Element element, const Half* matrix, std::int64_t rows, std::int64_t width,
                     float* sums) {
  with_half(element, [&]<class T>(HalfType<T>) {
    sum_columns(stream, ColumnSums<T>{as<T>(matrix), nullptr, nullptr, rows, width, nullptr, sums});
  });
}

}  // namespace sluice::kernels::cuda
