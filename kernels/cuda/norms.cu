#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

template <class T>
struct ResidualNorm {
  static constexpr int kThreads = kRowThreads;
  const T* from;
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
  std::int32_t* not_finite;

  SLUICE_DEVICE void operator()() const {
    const std::int64_t at = static_cast<std::int64_t>(block_x()) * width;
    T* const row = x + at;
    float sum = 0;
    bool finite = true;
    if (residual != nullptr || from != x || not_finite != nullptr || !rms) {
      for_each_chunk(width, [&](int column) {
        float numbers[kChunk];
        load_chunk(from + at, column, width, whole, numbers);
        if (residual != nullptr) {
          float others[kChunk];
          float biases[kChunk];
          load_chunk(residual + at, column, width, whole, others);
          load_optional_chunk(residual_bias, column, width, whole, biases);
          // The norm is that of the rounded sum.
          for (int i = 0; i < kChunk; ++i) numbers[i] = to_float(from_float<T>(numbers[i] + biases[i] + others[i]));
        }
        if (residual != nullptr || from != x) store_chunk(row, column, width, whole, numbers);
        finite = finite && all_finite(numbers);
        for (const float number : numbers) sum += number;
      });
    }
    // All threads that write store the same value.
    if (not_finite != nullptr && !finite) *not_finite = 1;
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
    const float inverse = inverse_root(squares / static_cast<float>(width) + static_cast<float>(kNormEpsilon));
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
  std::int32_t* not_finite;

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
    bool finite = true;
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
        // A number may become infinite when it is rounded.
        numbers[i] = to_float(from_float<T>(others[i] + inverse * (gradients[i] * gains[i] - sum - normal * products)));
      }
      finite = finite && all_finite(numbers);
      store_chunk(dx + at, column, width, whole, numbers);
    });
    if (not_finite != nullptr && !finite) *not_finite = 1;
  }
};

// Column sums: a block has kColumns columns, in chunks of 16 bytes per lane, so that a warp reads several rows; these
// are added over the lanes of a warp, then over warps, in an order that depends on sizes only. With `x`, the gradients
// of a norm's gain and bias; without, the column sums of the matrix, in `sums`.
template <class T>
struct ColumnSums {
  static constexpr int kThreads = 512;
  static constexpr int kLanes = 4;                  // per row: few columns per block, for many blocks
  static constexpr int kColumns = kLanes * kChunk;  // per block
  static constexpr int kRowsPerWarp = kWarp / kLanes;
  static constexpr int kLoads = 4;  // that a thread has in flight, of each matrix
  const T* matrix;
  const T* x;
  const float* statistics;
  std::int64_t rows;
  int width;
  bool whole;
  float* gain_sums;
  float* sums;

  SLUICE_DEVICE void operator()() const {
    float of_thread[2][kChunk] = {};  // sums, and sums of products with the normed x
    const int column = block_x() * kColumns + lane() % kLanes * kChunk;
    if (column < width) whole ? add_rows<true>(column, of_thread) : add_rows<false>(column, of_thread);
    auto* const parts = reinterpret_cast<float*>(shared_memory());  // [warps, 2, kColumns]
    SLUICE_UNROLL
    for (int which = 0; which < 2; ++which) {
      SLUICE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        float sum = of_thread[which][i];
        for (int mask = kLanes; mask < kWarp; mask *= 2) sum += shuffle_xor(sum, mask);
        if (lane() < kLanes) parts[(warp() * 2 + which) * kColumns + lane() * kChunk + i] = sum;
      }
    }
    sync_block();
    if (warp() >= 2) return;
    static_assert(kColumns == kWarp);
    float* const into = warp() == 0 ? sums : gain_sums;
    const int own = block_x() * kColumns + lane();
    if (into == nullptr || own >= width) return;
    float sum = 0;
    for (int i = 0; i < threads() / kWarp; ++i) sum += parts[(i * 2 + warp()) * kColumns + lane()];
    into[own] += sum;
  }

  template <bool kWhole>
  SLUICE_DEVICE void add_rows(int column, float (&into)[2][kChunk]) const {
    const std::int64_t step = threads() / kLanes;
    for (std::int64_t first = thread() / kLanes; first < rows; first += step * kLoads) {
      float numbers[kLoads][kChunk];
      float others[kLoads][kChunk];
      SLUICE_UNROLL
      for (int load = 0; load < kLoads; ++load) {
        const std::int64_t row = first + load * step;
        const bool exists = row < rows;
        load_optional_chunk(exists ? matrix + row * width : nullptr, column, width, kWhole, numbers[load]);
        load_optional_chunk(exists && x != nullptr ? x + row * width : nullptr, column, width, kWhole, others[load]);
      }
      SLUICE_UNROLL
      for (int load = 0; load < kLoads; ++load) {
        const std::int64_t row = first + load * step;
        if (row >= rows) break;
        const float mean = x == nullptr ? 0.0F : statistics[kNormStatistics * row];
        const float inverse = x == nullptr ? 0.0F : statistics[kNormStatistics * row + 1];
        SLUICE_UNROLL
        for (int i = 0; i < kChunk; ++i) {
          into[0][i] += numbers[load][i];
          into[1][i] += numbers[load][i] * (others[load][i] - mean) * inverse;
        }
      }
    }
  }
};

template <class T>
void sum_columns(Stream& stream, const ColumnSums<T>& kernel) {
  using Kernel = ColumnSums<T>;
  // Two warps at least, one for each kind of sums; more if there are enough rows to keep loads in flight.
  const auto warps = static_cast<int>(
      std::clamp<std::int64_t>(kernel.rows / (Kernel::kRowsPerWarp * Kernel::kLoads), 2, Kernel::kThreads / kWarp));
  launch(stream,
         Grid{.blocks_x = (kernel.width + Kernel::kColumns - 1) / Kernel::kColumns,
              .threads = warps * kWarp,
              .shared_bytes = 2 * warps * Kernel::kColumns * static_cast<int>(sizeof(float))},
         kernel);
}

}  // namespace

void residual_norm(Stream& stream, Element element, const Half* from, Half* x, const Half* residual,
                   const Half* residual_bias, std::int64_t rows, std::int64_t width, const NormWeights& weights,
                   float* statistics, Half* out, std::int32_t* not_finite) {
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, row_grid(rows, width),
           ResidualNorm<T>{as<T>(from), as<T>(x), as<T>(residual), as<T>(residual_bias), static_cast<int>(width),
                           in_whole_chunks({width}), as<T>(weights.gain), as<T>(weights.bias), weights.rms, statistics,
                           as<T>(out), not_finite});
  });
}

void norm_gradient(Stream& stream, Element element, const Half* gradient, const Half* x, const Half* residual,
                   const NormWeights& weights, const float* statistics, std::int64_t rows, std::int64_t width, Half* dx,
                   float* gain_gradient, float* bias_gradient, std::int32_t* not_finite) {
  const bool whole = in_whole_chunks({width});
  with_half(element, [&]<class T>(HalfType<T>) {
    // First, as dx may equal the gradient.
    sum_columns(stream, ColumnSums<T>{as<T>(gradient), as<T>(x), statistics, rows, static_cast<int>(width), whole,
                                      gain_gradient, bias_gradient});
    launch(stream, row_grid(rows, width),
           NormGradient<T>{as<T>(gradient), as<T>(x), as<T>(residual), as<T>(weights.gain), weights.rms, statistics,
                           static_cast<int>(width), whole, as<T>(dx), not_finite});
  });
}

void add_column_sums(Stream& stream, Element element, const Half* matrix, std::int64_t rows, std::int64_t width,
                     float* sums) {
  with_half(element, [&]<class T>(HalfType<T>) {
    sum_columns(stream, ColumnSums<T>{as<T>(matrix), nullptr, nullptr, rows, static_cast<int>(width),
                                      in_whole_chunks({width}), nullptr, sums});
  });
}

}  // namespace sluice::kernels::cuda
