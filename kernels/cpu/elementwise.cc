#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/vectors.h"

namespace sluice::kernels::cpu {
namespace {

// Inlined exp, which vectorizes: 2^n e^r with |r| <= ln 2 / 2, where n is taken from the bits of
// x / ln 2 + 1.5 2^(digits), ln 2 is split in two parts (Cody and Waite 1980), and e^r is its Taylor series up to the
// last term above half a unit in the last place. Arguments are clamped to the range of normal results; NaN is returned
// for NaN.
template <class T>
[[gnu::always_inline]] inline T exponential(T x) {
  constexpr bool kSingle = std::is_same_v<T, float>;
  using Bits = std::conditional_t<kSingle, std::uint32_t, std::uint64_t>;
  constexpr int kMantissa = kSingle ? 23 : 52;
  constexpr Bits kBias = kSingle ? 127 : 1023;
  constexpr T kLowest = kSingle ? T(-87) : T(-708);
  constexpr T kHighest = kSingle ? T(88) : T(709);
  constexpr T kShift = T(1.5) * static_cast<T>(Bits{1} << kMantissa);
  constexpr T kLn2High = kSingle ? T(0.693359375) : T(6.93147180369123816490e-01);
  constexpr T kLn2Low = kSingle ? T(-2.12194440e-4) : T(1.90821492927058770002e-10);
  x = x < kLowest ? kLowest : x;
  x = x > kHighest ? kHighest : x;
  const T shifted = x * T(1.44269504088896340736) + kShift;
  const T n = shifted - kShift;
  const T r = (x - n * kLn2High) - n * kLn2Low;
  T series = 1;
  if constexpr (!kSingle) {
    series = T(1) / T(39916800) + r * (T(1) / T(479001600) + r * (T(1) / T(6227020800)));
    series = T(1) / T(362880) + r * (T(1) / T(3628800) + r * series);
    series = T(1) / T(40320) + r * series;
  }
  if constexpr (kSingle) series = T(1) / T(5040);
  if constexpr (!kSingle) series = T(1) / T(5040) + r * series;
  series = T(1) / T(120) + r * (T(1) / T(720) + r * series);
  series = T(1) / T(6) + r * (T(1) / T(24) + r * series);
  series = T(1) + r * (T(1) + r * (T(0.5) + r * series));
  const Bits power = (std::bit_cast<Bits>(shifted) + kBias) << kMantissa;
  return series * std::bit_cast<T>(power);
}

template <class T>
[[gnu::always_inline]] inline T sigmoid(T x) {
  return T(1) / (T(1) + exponential(-x));
}

// Returns an element of an optional vector. The compiler hoists the condition out of loops.
template <class T>
[[gnu::always_inline]] inline T at(const T* vector, std::int64_t i) {
  return vector == nullptr ? T(0) : vector[i];
}

struct Norm {
  template <class T>
  [[gnu::always_inline]] static void run(const T* x, const T* gain, const T* bias, bool rms, std::int64_t rows,
                                         std::int64_t width, T* statistics, T* out) {
    for (std::int64_t r = 0; r < rows; ++r, x += width, out += width) {
      T mean = 0;
      if (!rms) {
#pragma omp simd reduction(+ : mean)
        for (std::int64_t c = 0; c < width; ++c) mean += x[c];
        mean /= static_cast<T>(width);
      }
      T squares = 0;
#pragma omp simd reduction(+ : squares)
      for (std::int64_t c = 0; c < width; ++c) squares += (x[c] - mean) * (x[c] - mean);
      const T inverse = T(1) / std::sqrt(squares / static_cast<T>(width) + static_cast<T>(kNormEpsilon));
      statistics[kNormStatistics * r] = mean;
      statistics[kNormStatistics * r + 1] = inverse;
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c) out[c] = (x[c] - mean) * inverse * gain[c] + at(bias, c);
    }
  }
};

struct NormGradient {
  template <class T>
  [[gnu::always_inline]] static void run(const T* gradient, const T* x, const T* gain, const T* statistics,
                                         const T* residual, bool rms, std::int64_t rows, std::int64_t width, T* sums,
                                         T* dx) {
    T* const gain_sum = sums;
    T* const bias_sum = sums + width;
#pragma omp simd
    for (std::int64_t c = 0; c < 2 * width; ++c) sums[c] = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      const T mean = statistics[kNormStatistics * r];
      const T inverse = statistics[kNormStatistics * r + 1];
      T sum = 0;
      T products = 0;
#pragma omp simd reduction(+ : sum, products)
      for (std::int64_t c = 0; c < width; ++c) {
        const T normal = (x[c] - mean) * inverse;
        const T scaled = gradient[c] * gain[c];
        sum += scaled;
        products += scaled * normal;
        gain_sum[c] += gradient[c] * normal;
        bias_sum[c] += gradient[c];
      }
      sum = rms ? T(0) : sum / static_cast<T>(width);
      products /= static_cast<T>(width);
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c) {
        const T normal = (x[c] - mean) * inverse;
        dx[c] = at(residual, c) + inverse * (gradient[c] * gain[c] - sum - normal * products);
      }
      if (residual != nullptr) residual += width;
      gradient += width;
      x += width;
      dx += width;
    }
  }
};

constexpr double kGeluLinear = 2 * 0.79788456080286535588;  // 2 sqrt(2 / pi)
constexpr double kGeluCubic = kGeluLinear * 0.044715;

struct AddBiasGelu {
  template <class T>
  [[gnu::always_inline]] static void run(T* pre, const T* bias, std::int64_t rows, std::int64_t width, T* out) {
    for (std::int64_t r = 0; r < rows; ++r, pre += width, out += width) {
      if (bias != nullptr) {
#pragma omp simd
        for (std::int64_t c = 0; c < width; ++c) pre[c] += bias[c];
      }
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c) {
        const T x = pre[c];
        out[c] = x * sigmoid(x * (static_cast<T>(kGeluLinear) + static_cast<T>(kGeluCubic) * x * x));
      }
    }
  }
};

struct GeluGradient {
  template <class T>
  [[gnu::always_inline]] static void run(const T* pre, std::int64_t count, T* gradient) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      const T x = pre[i];
      const T s = sigmoid(x * (static_cast<T>(kGeluLinear) + static_cast<T>(kGeluCubic) * x * x));
      const T slope = static_cast<T>(kGeluLinear) + T(3) * static_cast<T>(kGeluCubic) * x * x;
      gradient[i] *= s + x * s * (T(1) - s) * slope;
    }
  }
};

struct AddBiasSwiglu {
  template <class T>
  [[gnu::always_inline]] static void run(T* pre, const T* bias, std::int64_t rows, std::int64_t width, T* out) {
    for (std::int64_t r = 0; r < rows; ++r, pre += 2 * width, out += width) {
      if (bias != nullptr) {
#pragma omp simd
        for (std::int64_t c = 0; c < 2 * width; ++c) pre[c] += bias[c];
      }
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c) out[c] = pre[c] * sigmoid(pre[c]) * pre[width + c];
    }
  }
};

struct SwigluGradient {
  template <class T>
  [[gnu::always_inline]] static void run(const T* pre, std::int64_t rows, std::int64_t width, T* gradient) {
    for (std::int64_t r = 0; r < rows; ++r, pre += 2 * width, gradient += 2 * width) {
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c) {
        const T gate = pre[c];
        const T s = sigmoid(gate);
        const T out = gradient[width + c];
        gradient[c] = out * pre[width + c] * (s + gate * s * (T(1) - s));
        gradient[width + c] = out * gate * s;
      }
    }
  }
};

struct AddBiasResidual {
  template <class T>
  [[gnu::always_inline]] static void run(const T* bias, const T* x, std::int64_t rows, std::int64_t width, T* y) {
    for (std::int64_t r = 0; r < rows; ++r, x += width, y += width) {
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c) y[c] = y[c] + at(bias, c) + x[c];
    }
  }
};

struct Add {
  template <class T>
  [[gnu::always_inline]] static void run(const T* x, std::int64_t count, T* y) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) y[i] += x[i];
  }
};

struct AddColumnSums {
  // Processes four rows per iteration, which divides the accesses to the sums by four.
  template <class T>
  [[gnu::always_inline]] static void run(const T* matrix, std::int64_t rows, std::int64_t width, T* sums) {
    std::int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
      const T* const a = matrix + r * width;
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c) {
        sums[c] += (a[c] + a[width + c]) + (a[2 * width + c] + a[3 * width + c]);
      }
    }
    for (; r < rows; ++r) {
      const T* const a = matrix + r * width;
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c) sums[c] += a[c];
    }
  }
};

struct ApplyRotary {
  template <class T>
  [[gnu::always_inline]] static void run(const HeadRows* shape, const T* x, std::int64_t stride, const T* bias,
                                         const T* cosines, const T* sines, T direction, T* out,
                                         std::int64_t out_stride) {
    const std::int64_t half = shape->head_dim / 2;
    for (std::int64_t r = 0; r < shape->rows; ++r, x += stride, out += out_stride) {
      const T* const cosine = cosines + (r % shape->tokens) * half;
      const T* const sine = sines + (r % shape->tokens) * half;
      for (std::int64_t head = 0; head < shape->heads; ++head) {
        const T* const in = x + head * shape->head_dim;
        T* const to = out + head * shape->head_dim;
        const T* const added = bias == nullptr ? nullptr : bias + head * shape->head_dim;
#pragma omp simd
        for (std::int64_t i = 0; i < half; ++i) {
          const T a = in[i] + at(added, i);
          const T b = in[half + i] + at(added, half + i);
          to[i] = a * cosine[i] - direction * b * sine[i];
          to[half + i] = b * cosine[i] + direction * a * sine[i];
        }
      }
    }
  }
};

struct CopyRows {
  template <class T>
  [[gnu::always_inline]] static void run(const T* x, std::int64_t stride, const T* bias, std::int64_t rows,
                                         std::int64_t width, T* out, std::int64_t out_stride) {
    for (std::int64_t r = 0; r < rows; ++r, x += stride, out += out_stride) {
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c) out[c] = x[c] + at(bias, c);
    }
  }
};

struct ForwardTile {
  template <class T>
  [[gnu::always_inline]] static void run(const SoftmaxTile<T>* tile, bool first, T* maximum, T* sum, T* out,
                                         std::int64_t out_stride, std::int64_t width) {
    T* scores = tile->scores;
    for (std::int64_t r = 0; r < tile->rows; ++r, scores += tile->stride, out += out_stride) {
      const std::int64_t seen = std::clamp<std::int64_t>(tile->limit + r + 1, 0, tile->columns);
      T highest = first ? std::numeric_limits<T>::lowest() : maximum[r];
#pragma omp simd reduction(max : highest)
      for (std::int64_t c = 0; c < seen; ++c) highest = scores[c] > highest ? scores[c] : highest;
      T total = 0;
#pragma omp simd reduction(+ : total)
      for (std::int64_t c = 0; c < seen; ++c) {
        scores[c] = exponential(scores[c] - highest);
        total += scores[c];
      }
#pragma omp simd
      for (std::int64_t c = seen; c < tile->columns; ++c) scores[c] = 0;
      if (first) {
        sum[r] = total;
      } else if (highest == maximum[r]) {
        sum[r] += total;
      } else {
        const T factor = exponential(maximum[r] - highest);
        sum[r] = sum[r] * factor + total;
#pragma omp simd
        for (std::int64_t c = 0; c < width; ++c) out[c] *= factor;
      }
      maximum[r] = highest;
    }
  }
};

struct FinishSoftmax {
  template <class T>
  [[gnu::always_inline]] static void run(std::int64_t rows, const T* sum, T* out, std::int64_t out_stride,
                                         std::int64_t width) {
    for (std::int64_t r = 0; r < rows; ++r, out += out_stride) {
      const T inverse = T(1) / sum[r];
#pragma omp simd
      for (std::int64_t c = 0; c < width; ++c) out[c] *= inverse;
    }
  }
};

struct TileGradient {
  template <class T>
  [[gnu::always_inline]] static void run(const SoftmaxTile<T>* tile, const T* log_sum, const T* products, T scale,
                                         T* gradient) {
    T* scores = tile->scores;
    for (std::int64_t r = 0; r < tile->rows; ++r, scores += tile->stride, gradient += tile->stride) {
      const std::int64_t seen = std::clamp<std::int64_t>(tile->limit + r + 1, 0, tile->columns);
      const T shift = log_sum[r];
      const T product = products[r];
#pragma omp simd
      for (std::int64_t c = 0; c < seen; ++c) {
        const T probability = exponential(scores[c] - shift);
        scores[c] = probability;
        gradient[c] = scale * probability * (gradient[c] - product);
      }
#pragma omp simd
      for (std::int64_t c = seen; c < tile->columns; ++c) {
        scores[c] = 0;
        gradient[c] = 0;
      }
    }
  }
};

struct RowDotProducts {
  template <class T>
  [[gnu::always_inline]] static void run(std::int64_t rows, std::int64_t width, const T* a, std::int64_t a_stride,
                                         const T* b, std::int64_t b_stride, T* products) {
    for (std::int64_t r = 0; r < rows; ++r, a += a_stride, b += b_stride) {
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t c = 0; c < width; ++c) sum += a[c] * b[c];
      products[r] = sum;
    }
  }
};

struct RowMaxima {
  template <class T>
  [[gnu::always_inline]] static void run(const T* matrix, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                                         T* maxima) {
    for (std::int64_t r = 0; r < rows; ++r, matrix += stride) {
      T highest = std::numeric_limits<T>::lowest();
#pragma omp simd reduction(max : highest)
      for (std::int64_t c = 0; c < columns; ++c) highest = matrix[c] > highest ? matrix[c] : highest;
      maxima[r] = highest;
    }
  }
};

struct RowExponentials {
  template <class T>
  [[gnu::always_inline]] static void run(T* matrix, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                                         const T* maxima, T* sums) {
    for (std::int64_t r = 0; r < rows; ++r, matrix += stride) {
      const T highest = maxima[r];
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t c = 0; c < columns; ++c) {
        matrix[c] = exponential(matrix[c] - highest);
        sum += matrix[c];
      }
      sums[r] = sum;
    }
  }
};

struct ScaleRows {
  template <class T>
  [[gnu::always_inline]] static void run(T* matrix, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                                         const T* sums, T scale) {
    for (std::int64_t r = 0; r < rows; ++r, matrix += stride) {
      const T factor = scale / sums[r];
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) matrix[c] *= factor;
    }
  }
};

}  // namespace

Vectors widest_vectors() {
#if SLUICE_VECTOR_VARIANTS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma")) {
    return Vectors::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Vectors::avx2;
#endif
  return Vectors::portable;
}

template <class T>
void norm(const T* x, const T* gain, const T* bias, bool rms, std::int64_t rows, std::int64_t width, T* statistics,
          T* out) {
  run_vectorised<Norm>(x, gain, bias, rms, rows, width, statistics, out);
}

template <class T>
void norm_gradient(const T* gradient, const T* x, const T* gain, const T* statistics, const T* residual, bool rms,
                   std::int64_t rows, std::int64_t width, T* sums, T* dx, T* gain_gradient, T* bias_gradient) {
  run_vectorised<NormGradient>(gradient, x, gain, statistics, residual, rms, rows, width, sums, dx);
  add<T>(sums, width, gain_gradient);
  if (bias_gradient != nullptr) add<T>(sums + width, width, bias_gradient);
}

template <class T>
void add_bias_gelu(T* pre, const T* bias, std::int64_t rows, std::int64_t width, T* out) {
  run_vectorised<AddBiasGelu>(pre, bias, rows, width, out);
}

template <class T>
void gelu_gradient(const T* pre, std::int64_t count, T* gradient) {
  run_vectorised<GeluGradient>(pre, count, gradient);
}

template <class T>
void add_bias_swiglu(T* pre, const T* bias, std::int64_t rows, std::int64_t width, T* out) {
  run_vectorised<AddBiasSwiglu>(pre, bias, rows, width, out);
}

template <class T>
void swiglu_gradient(const T* pre, std::int64_t rows, std::int64_t width, T* gradient) {
  run_vectorised<SwigluGradient>(pre, rows, width, gradient);
}

template <class T>
void add_bias_residual(const T* bias, const T* x, std::int64_t rows, std::int64_t width, T* y) {
  run_vectorised<AddBiasResidual>(bias, x, rows, width, y);
}

template <class T>
void add(const T* x, std::int64_t count, T* y) {
  run_vectorised<Add>(x, count, y);
}

template <class T>
void add_column_sums(const T* matrix, std::int64_t rows, std::int64_t width, T* sums) {
  run_vectorised<AddColumnSums>(matrix, rows, width, sums);
}

template <class T>
void rotary_angles(std::int64_t context, std::int64_t tokens, std::int64_t head_dim, T* cosines, T* sines) {
  constexpr double kTheta = 10000;
  const std::int64_t half = head_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(kTheta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    for (std::int64_t token = 0; token < tokens; ++token) {
      const double angle = static_cast<double>(context + token) * frequency;
      cosines[token * half + i] = static_cast<T>(std::cos(angle));
      sines[token * half + i] = static_cast<T>(std::sin(angle));
    }
  }
}

template <class T>
void apply_rotary(const HeadRows& shape, const T* x, std::int64_t stride, const T* bias, const T* cosines,
                  const T* sines, bool back, T* out, std::int64_t out_stride) {
  if (cosines == nullptr) {
    run_vectorised<CopyRows>(x, stride, bias, shape.rows, shape.heads * shape.head_dim, out, out_stride);
  } else {
    run_vectorised<ApplyRotary>(&shape, x, stride, bias, cosines, sines, back ? T(-1) : T(1), out, out_stride);
  }
}

template <class T>
void softmax_tile(const SoftmaxTile<T>& tile, bool first, T* maximum, T* sum, T* out, std::int64_t out_stride,
                  std::int64_t width) {
  run_vectorised<ForwardTile>(&tile, first, maximum, sum, out, out_stride, width);
}

template <class T>
void finish_softmax(std::int64_t rows, const T* maximum, const T* sum, T* out, std::int64_t out_stride,
                    std::int64_t width, T* log_sum) {
  run_vectorised<FinishSoftmax>(rows, sum, out, out_stride, width);
  for (std::int64_t r = 0; r < rows; ++r) log_sum[r] = maximum[r] + std::log(sum[r]);
}

template <class T>
void softmax_tile_gradient(const SoftmaxTile<T>& tile, const T* log_sum, const T* products, T scale, T* gradient) {
  run_vectorised<TileGradient>(&tile, log_sum, products, scale, gradient);
}

template <class T>
void row_dot_products(std::int64_t rows, std::int64_t width, const T* a, std::int64_t a_stride, const T* b,
                      std::int64_t b_stride, T* products) {
  run_vectorised<RowDotProducts>(rows, width, a, a_stride, b, b_stride, products);
}

template <class T>
void row_maxima(const T* matrix, std::int64_t stride, std::int64_t rows, std::int64_t columns, T* maxima) {
  run_vectorised<RowMaxima>(matrix, stride, rows, columns, maxima);
}

template <class T>
void row_exponentials(T* matrix, std::int64_t stride, std::int64_t rows, std::int64_t columns, const T* maxima,
                      T* sums) {
  run_vectorised<RowExponentials>(matrix, stride, rows, columns, maxima, sums);
}

template <class T>
void scale_rows(T* matrix, std::int64_t stride, std::int64_t rows, std::int64_t columns, const T* sums, T scale) {
  run_vectorised<ScaleRows>(matrix, stride, rows, columns, sums, scale);
}

// NOLINTBEGIN(bugprone-macro-parentheses): types
#define SLUICE_INSTANTIATE(T)                                                                                         \
  template void norm(const T*, const T*, const T*, bool, std::int64_t, std::int64_t, T*, T*);                         \
  template void norm_gradient(const T*, const T*, const T*, const T*, const T*, bool, std::int64_t, std::int64_t, T*, \
                              T*, T*, T*);                                                                            \
  template void add_bias_gelu(T*, const T*, std::int64_t, std::int64_t, T*);                                          \
  template void gelu_gradient(const T*, std::int64_t, T*);                                                            \
  template void add_bias_swiglu(T*, const T*, std::int64_t, std::int64_t, T*);                                        \
  template void swiglu_gradient(const T*, std::int64_t, std::int64_t, T*);                                            \
  template void add_bias_residual(const T*, const T*, std::int64_t, std::int64_t, T*);                                \
  template void add(const T*, std::int64_t, T*);                                                                      \
  template void add_column_sums(const T*, std::int64_t, std::int64_t, T*);                                            \
  template void rotary_angles(std::int64_t, std::int64_t, std::int64_t, T*, T*);                                      \
  template void apply_rotary(const HeadRows&, const T*, std::int64_t, const T*, const T*, const T*, bool, T*,         \
                             std::int64_t);                                                                           \
  template void softmax_tile(const SoftmaxTile<T>&, bool, T*, T*, T*, std::int64_t, std::int64_t);                    \
  template void finish_softmax(std::int64_t, const T*, const T*, T*, std::int64_t, std::int64_t, T*);                 \
  template void softmax_tile_gradient(const SoftmaxTile<T>&, const T*, const T*, T, T*);                              \
  template void row_dot_products(std::int64_t, std::int64_t, const T*, std::int64_t, const T*, std::int64_t, T*);     \
  template void row_maxima(const T*, std::int64_t, std::int64_t, std::int64_t, T*);                                   \
  template void row_exponentials(T*, std::int64_t, std::int64_t, std::int64_t, const T*, T*);                         \
  template void scale_rows(T*, std::int64_t, std::int64_t, std::int64_t, const T*, T);
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(double)
#undef SLUICE_INSTANTIATE
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace sluice::kernels::cpu
