#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace sluice::kernels::cuda {

// What a layer computes besides products and attention. Matrices of 16-bit numbers (`element` says which) are
// row-major and dense; biases may be null. All are put on a stream. Sums over rows and columns run in an order that
// depends on sizes alone; only where it says so do threads add to one place in any order.

// A 16-bit number, for places in buffers.
using Half = std::uint16_t;

inline constexpr std::int64_t kNormStatistics = 2;
inline constexpr float kNormEpsilon = 1e-5F;

struct NormWeights {
  const Half* gain = nullptr;
  const Half* bias = nullptr;  // null: none
  bool rms = false;            // the mean is taken as 0
};
// x += residual_bias + residual (none where residual is null); then out = (x - mean) / deviation * gain + bias, and
// statistics [rows, 2] of mean and 1 / deviation. Without `out` only the first.
void residual_norm(Stream& stream, Element element, Half* x, const Half* residual, const Half* residual_bias,
                   std::int64_t rows, std::int64_t width, const NormWeights& weights, float* statistics, Half* out);
// From the gradient of `out`: dx = residual + that of x (residual may be null), and adds those of gain and bias.
void norm_gradient(Stream& stream, Element element, const Half* gradient, const Half* x, const Half* residual,
                   const NormWeights& weights, const float* statistics, std::int64_t rows, std::int64_t width, Half* dx,
                   float* gain_gradient, float* bias_gradient);
// sums[c] += sum over rows of matrix[r, c].
void add_column_sums(Stream& stream, Element element, const Half* matrix, std::int64_t rows, std::int64_t width,
                     float* sums);

// out = gelu(products + bias) in its tanh form. With a gate `products` [rows, 2 width] holds gate and up beside each
// other, and out = silu(gate) * up. See kernels/cpu/elementwise.h.
void activate(Stream& stream, Element element, bool gated, const Half* products, const Half* bias, std::int64_t rows,
              std::int64_t width, Half* out);
// `gradient` has the shape of `products`: its last `width` columns hold that of `out`; it becomes that of the products.
void activate_gradient(Stream& stream, Element element, bool gated, const Half* products, const Half* bias,
                       std::int64_t rows, std::int64_t width, Half* gradient);

// Cosines and sines [tokens, head_dim / 2] of the angles of tokens after `context` others, worked out in double.
void rotary_angles(Stream& stream, std::int64_t context, std::int64_t tokens, std::int64_t head_dim, float* cosines,
                   float* sines);

struct TurnShape {
  std::int64_t rows = 0;
  std::int64_t tokens = 0;  // of a sequence: row r has the angles of token r % tokens
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  const float* cosines = nullptr;  // null: positions are learned, nothing is turned
  const float* sines = nullptr;

  std::int64_t query_width() const { return std::int64_t{heads} * head_dim; }
  std::int64_t key_width() const { return std::int64_t{kv_heads} * head_dim; }
  std::int64_t qkv_width() const { return query_width() + 2 * key_width(); }
};
// Adds the bias to a row's queries, keys and values beside each other, turns queries and keys by their position, and
// puts the three where they belong.
void turn_apart(Stream& stream, Element element, const TurnShape& shape, const Half* qkv, const Half* bias,
                Half* queries, Half* keys, Half* values);
// Gradients the other way: those of keys and values come beside those of the queries, which stand there already.
void turn_together(Stream& stream, Element element, const TurnShape& shape, const float* keys_gradient,
                   const float* values_gradient, Half* qkv_gradient);

// out[r] = words[tokens[r] - first_token] where that is one of vocab_rows, else 0; plus positions[r % slice_tokens]
// unless null.
struct EmbeddingShape {
  std::int64_t rows = 0;
  std::int64_t tokens = 0;  // of a sequence
  std::int64_t hidden = 0;
  std::int64_t first_token = 0;
  std::int64_t vocab_rows = 0;
};
void embed(Stream& stream, Element element, const EmbeddingShape& shape, const std::int32_t* tokens, const Half* words,
           const Half* positions, Half* out);
// Adds to both. Rows of one token add to one word in any order.
void embedding_gradient(Stream& stream, Element element, const EmbeddingShape& shape, const std::int32_t* tokens,
                        const Half* gradient, float* words, float* positions);

}  // namespace sluice::kernels::cuda
