#pragma once

#include <cstdint>

#include "model/namespaces.h"

namespace sluice::kernels::cpu {

// What a layer computes besides matrix products. All matrices are row-major and dense unless a stride is given; biases
// may be null. Sums run in an order that depends on sizes alone.

// Mean and 1 / standard deviation of each row; the mean is 0 for an RMS norm.
inline constexpr std::int64_t kNormStatistics = 2;
inline constexpr double kNormEpsilon = 1e-5;

// out = (x - mean) / deviation * gain + bias. With rms the deviation is the root of the mean square.
template <class T>
void norm(const T* x, const T* gain, const T* bias, bool rms, std::int64_t rows, std::int64_t width, T* statistics,
          T* out);
// From the gradient of `out`: dx = residual + that of x (residual may be null), and adds those of gain and bias.
// `sums` is scratch of 2 width.
template <class T>
void norm_gradient(const T* gradient, const T* x, const T* gain, const T* statistics, const T* residual, bool rms,
                   std::int64_t rows, std::int64_t width, T* sums, T* dx, T* gain_gradient, T* bias_gradient);

// pre += bias; out = gelu(pre), in its tanh form (Hendrycks and Gimpel 2016): x sigmoid(2 sqrt(2/pi) (x + 0.044715
// x^3)).
template <class T>
void add_bias_gelu(T* pre, const T* bias, std::int64_t rows, std::int64_t width, T* out);
// gradient *= gelu'(pre).
template <class T>
void gelu_gradient(const T* pre, std::int64_t count, T* gradient);

// pre [rows, 2 width] holds gate and up beside each other: pre += bias; out = silu(gate) * up.
template <class T>
void add_bias_swiglu(T* pre, const T* bias, std::int64_t rows, std::int64_t width, T* out);
// gradient [rows, 2 width]: in its right half that of `out`; becomes that of pre.
template <class T>
void swiglu_gradient(const T* pre, std::int64_t rows, std::int64_t width, T* gradient);

// y += bias + x.
template <class T>
void add_bias_residual(const T* bias, const T* x, std::int64_t rows, std::int64_t width, T* y);
// y += x.
template <class T>
void add(const T* x, std::int64_t count, T* y);

// sums[c] += sum over rows of matrix[r, c].
template <class T>
void add_column_sums(const T* matrix, std::int64_t rows, std::int64_t width, T* sums);

// Cosines and sines [tokens, head_dim / 2] of the angles of tokens after `context` others: position x theta^(-2i/d),
// with theta 10000 (Su et al. 2021).
template <class T>
void rotary_angles(std::int64_t context, std::int64_t tokens, std::int64_t head_dim, T* cosines, T* sines);

struct HeadRows {
  std::int64_t rows = 0;
  std::int64_t tokens = 0;  // of a sequence: row r has the angles of token r % tokens
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
};
// out = (x + bias) turned by its position, element i with i + head_dim / 2. Without cosines it is not turned; `back`
// turns the other way, as gradients do. x may be out.
template <class T>
void turn(const HeadRows& shape, const T* x, std::int64_t stride, const T* bias, const T* cosines, const T* sines,
          bool back, T* out, std::int64_t out_stride);

// One step of a softmax that sees its columns tile by tile (Milakov and Gimelshein 2018). Row r of the tile may see
// columns [0, limit + r]; its scores become exp(score - maximum), 0 for those it may not see. `maximum` and `sum` are
// carried from tile to tile, and `out` [rows, width], what the tiles before added up to, is scaled to the new maximum.
template <class T>
struct SoftmaxTile {
  T* scores = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t limit = 0;
};
template <class T>
void softmax_tile(const SoftmaxTile<T>& tile, bool first, T* maximum, T* sum, T* out, std::int64_t out_stride,
                  std::int64_t width);
// After the last tile: out /= sum, and log_sum = maximum + ln sum.
template <class T>
void finish_softmax(std::int64_t rows, const T* maximum, const T* sum, T* out, std::int64_t out_stride,
                    std::int64_t width, T* log_sum);
// Scores become probabilities exp(score - log_sum), and `gradient` (same stride), that of the probabilities, becomes
// that of the scores times `scale`: scale p (gradient - product), where product is the sum over all columns of p x
// gradient.
template <class T>
void softmax_tile_gradient(const SoftmaxTile<T>& tile, const T* log_sum, const T* products, T scale, T* gradient);
// products[r] = sum over c of a[r, c] b[r, c].
template <class T>
void row_products(std::int64_t rows, std::int64_t width, const T* a, std::int64_t a_stride, const T* b,
                  std::int64_t b_stride, T* products);

// Of [rows, columns] with a stride: the maximum of each row (the lowest number where there are no columns).
template <class T>
void row_maxima(const T* matrix, std::int64_t stride, std::int64_t rows, std::int64_t columns, T* maxima);
// matrix = exp(matrix - maximum), and the sum of each row.
template <class T>
void row_exponentials(T* matrix, std::int64_t stride, std::int64_t rows, std::int64_t columns, const T* maxima,
                      T* sums);
// Row r is divided by sums[r] and multiplied by `scale`.
template <class T>
void scale_rows(T* matrix, std::int64_t stride, std::int64_t rows, std::int64_t columns, const T* sums, T scale);

}  // namespace sluice::kernels::cpu
