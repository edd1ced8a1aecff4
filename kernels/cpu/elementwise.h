#pragma once

#include <cstdint>

#include "kernels/row_shapes.h"
#include "kernels/weights.h"

namespace sluice::kernels::cpu {

// The operations of a layer besides matrix multiplications, and the optimizer step. Matrices are row-major, and dense
// unless a stride is given; biases may be null. The order of summation depends on sizes only.

// LayerNorm: out = (x - mean) / deviation * gain + bias; with `rms` RMSNorm, whose deviation is the root mean square.
template <class T>
void norm(const T* x, const T* gain, const T* bias, bool rms, std::int64_t rows, std::int64_t width, T* statistics,
          T* out);
// From the gradient of `out`: writes dx = residual + the gradient of x (residual may be null) and accumulates the
// gradients of gain and bias. `sums` is scratch of 2 width elements.
template <class T>
void norm_gradient(const T* gradient, const T* x, const T* gain, const T* statistics, const T* residual, bool rms,
                   std::int64_t rows, std::int64_t width, T* sums, T* dx, T* gain_gradient, T* bias_gradient);

// pre += bias; out = gelu(pre), in the tanh approximation (Hendrycks and Gimpel 2016), which equals
// x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
template <class T>
void add_bias_gelu(T* pre, const T* bias, std::int64_t rows, std::int64_t width, T* out);
// gradient *= gelu'(pre).
template <class T>
void gelu_gradient(const T* pre, std::int64_t count, T* gradient);

// pre [rows, 2 width] is the concatenation of gate and up: pre += bias; out = silu(gate) * up.
template <class T>
void add_bias_swiglu(T* pre, const T* bias, std::int64_t rows, std::int64_t width, T* out);
// gradient [rows, 2 width]: replaces the gradient of `out`, in the right half, by the gradient of pre.
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

// Writes cosines and sines [tokens, head_dim / 2] of the angles of rotary embeddings after a prefix of `context`
// tokens: position x theta^(-2i/d) with theta = 10000 (Su et al. 2021).
template <class T>
void rotary_angles(std::int64_t context, std::int64_t tokens, std::int64_t head_dim, T* cosines, T* sines);

struct HeadRows {
  std::int64_t rows = 0;
  std::int64_t tokens = 0;  // per sequence: row r has the angles of token r % tokens
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
};
// Rotary embedding (RoPE): out = x + bias, rotated by position, where element i is paired with i + head_dim / 2. Does
// not rotate if cosines are null; `back` rotates in the opposite direction, for gradients. x may equal out.
template <class T>
void apply_rotary(const HeadRows& shape, const T* x, std::int64_t stride, const T* bias, const T* cosines,
                  const T* sines, bool back, T* out, std::int64_t out_stride);

// One tile of an online softmax (Milakov and Gimelshein 2018). Row r of the tile attends to columns [0, limit + r]; its
// scores become exp(score - maximum), and 0 in masked columns. `maximum` and `sum` are updated from tile to tile, and
// `out` [rows, width], the result of the previous tiles, is rescaled to the new maximum.
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
// Replaces scores by probabilities p = exp(score - log_sum), and the gradient of the probabilities (same stride) by
// `scale` times that of the scores: scale p (gradient - dot product of p and gradient over all columns).
template <class T>
void softmax_tile_gradient(const SoftmaxTile<T>& tile, const T* log_sum, const T* dot_products, T scale, T* gradient);
// dot_products[r] = sum over c of a[r, c] b[r, c].
template <class T>
void row_dot_products(std::int64_t rows, std::int64_t width, const T* a, std::int64_t a_stride, const T* b,
                      std::int64_t b_stride, T* dot_products);

// Maximum of each row of a matrix; the lowest finite number if there are no columns.
template <class T>
void row_maxima(const T* matrix, std::int64_t stride, std::int64_t rows, std::int64_t columns, T* maxima);
// matrix = exp(matrix - maximum of the row); writes the sum of each row.
template <class T>
void row_exponentials(T* matrix, std::int64_t stride, std::int64_t rows, std::int64_t columns, const T* maxima,
                      T* sums);
// Multiplies row r by scale / sums[r].
template <class T>
void scale_rows(T* matrix, std::int64_t stride, std::int64_t rows, std::int64_t columns, const T* sums, T scale);

// Returns the sum of squares of the gradients of `counted` parameters.
template <class T>
double squared_norm(const WeightOffsets& offsets, const T* gradients);

// Implements Stage::step. `adam_moments` holds the first moments of all weights, then the second; not used by SGD.
template <class T>
void optimizer_step(const WeightOffsets& offsets, const OptimizerStep& step, const T* weights, T* new_weights,
                    T* adam_moments, const T* gradients);

}  // namespace sluice::kernels::cpu
