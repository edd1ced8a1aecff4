#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device.h"
#include "kernels/row_shapes.h"
#include "kernels/stage.h"
#include "kernels/weights.h"

namespace sluice::kernels::cuda {

// The operations of a layer besides matrix multiplications and attention, and the optimizer step. Matrices of 16-bit
// numbers, of the type that `element` names, are row-major and dense; biases may be null. All functions enqueue on a
// stream. The order of summation depends on sizes only, except where documented.

// Storage of a 16-bit number of either type.
using Half = std::uint16_t;

struct NormWeights {
  const Half* gain = nullptr;
  const Half* bias = nullptr;  // null: none
  bool rms = false;            // RMSNorm: the mean is taken as 0
};
// Writes x = from, plus residual_bias + residual unless residual is null (`from` may equal x); then writes out = (x -
// mean) / deviation * gain + bias and statistics [rows, 2], mean and 1 / deviation, unless out is null. Sets
// *not_finite, if it is not null, to 1 if any number of x is not finite.
void residual_norm(Stream& stream, Element element, const Half* from, Half* x, const Half* residual,
                   const Half* residual_bias, std::int64_t rows, std::int64_t width, const NormWeights& weights,
                   float* statistics, Half* out, std::int32_t* not_finite = nullptr);
// From the gradient of `out`: writes dx = residual + the gradient of x (residual may be null) and accumulates the
// gradients of gain and bias. Sets *not_finite, if it is not null, to 1 if any number of dx is not finite.
void norm_gradient(Stream& stream, Element element, const Half* gradient, const Half* x, const Half* residual,
                   const NormWeights& weights, const float* statistics, std::int64_t rows, std::int64_t width, Half* dx,
                   float* gain_gradient, float* bias_gradient, std::int32_t* not_finite = nullptr);
// sums[c] += sum over rows of matrix[r, c].
void add_column_sums(Stream& stream, Element element, const Half* matrix, std::int64_t rows, std::int64_t width,
                     float* sums);

using RowFactors = kernels::RowFactors<float>;
// out = gelu(inputs + bias) in the tanh approximation. If `gated`, inputs [rows, 2 width] is the concatenation of gate
// and up, and out = silu(gate) * up. See kernels/cpu/elementwise.h. Rows of `out` are multiplied with their factors.
void activate(Stream& stream, Element element, bool gated, const Half* inputs, const Half* bias, std::int64_t rows,
              std::int64_t width, Half* out, const RowFactors& factors = {});
// `gradient` has the shape of `inputs`: replaces the gradient of `out`, in the last `width` columns, by that of the
// inputs.
void activate_gradient(Stream& stream, Element element, bool gated, const Half* inputs, const Half* bias,
                       std::int64_t rows, std::int64_t width, Half* gradient, const RowFactors& factors = {});
// Writes the cosines and sines of the angles of rotary embeddings after a prefix of `context` tokens, [tokens, 2,
// head_dim / 2], computed in double precision.
void rotary_angles(Stream& stream, std::int64_t context, std::int64_t tokens, std::int64_t head_dim, float* angles);

struct QkvShape {
  std::int64_t rows = 0;
  std::int64_t tokens = 0;  // per sequence: row r has the angles of token r % tokens
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  // Token t of sequence s is row s * key_tokens + key_context + t of keys and values: see KeyRows of attention.h.
  std::int64_t key_tokens = 0;
  std::int64_t key_context = 0;
  const float* angles = nullptr;  // of rotary_angles; null: no rotary embedding

  std::int64_t query_width() const { return std::int64_t{heads} * head_dim; }
  std::int64_t key_width() const { return std::int64_t{kv_heads} * head_dim; }
  std::int64_t qkv_width() const { return query_width() + 2 * key_width(); }
};
// Splits the rows of a fused projection into queries, keys and values, after adding the bias and applying the rotary
// embedding to queries and keys.
void split_qkv(Stream& stream, Element element, const QkvShape& shape, const Half* qkv, const Half* bias, Half* queries,
               Half* keys, Half* values);
// Backward of split_qkv: rotates the gradients back and writes those of keys and values beside those of the queries,
// which are in qkv_gradient already. All of them are if keys_gradient is null.
void merge_qkv_gradients(Stream& stream, Element element, const QkvShape& shape, const float* keys_gradient,
                         const float* values_gradient, Half* qkv_gradient);

// out[r] = words[tokens[r] - first_token], or 0 if that is not one of vocab_rows, plus positions[r % shape.tokens]
// unless null.
void embed(Stream& stream, Element element, const EmbeddingShape& shape, const std::int32_t* tokens, const Half* words,
           const Half* positions, Half* out);
// Accumulates both gradients. The order in which rows of the same token are added is not deterministic.
void embedding_gradient(Stream& stream, Element element, const EmbeddingShape& shape, const std::int32_t* tokens,
                        const Half* gradient, float* words, float* positions);

// A range of a stage's weights, in elements, with equal options.
struct WeightRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool decays = false;
};
// Returns consecutive ranges that cover all elements. Padding, whose gradient is zero, belongs to the previous
// parameter.
std::vector<WeightRange> step_ranges(const WeightOffsets& offsets);
// Returns ranges that cover the `counted` parameters, and padding.
std::vector<WeightRange> counted_ranges(const WeightOffsets& offsets);

// Implements Stage::add_squared_norm. The order in which blocks add to *squares is not deterministic.
void add_squares(Stream& stream, const std::vector<WeightRange>& ranges, const float* gradients, float* squares);

// Master weights, and Adam's first and second moments.
struct OptimizerState {
  float* master = nullptr;
  float* first = nullptr;
  float* second = nullptr;
};
// Implements Stage::step. Writes the rounded master weights to new_weights even if the step is skipped.
void optimizer_step(Stream& stream, Element element, const std::vector<WeightRange>& ranges, const OptimizerStep& step,
                    const OptimizerState& state, const float* gradients, Half* new_weights);
// Implements Stage::draw_weights.
void draw_weights(Stream& stream, const StageSpec& spec, const WeightOffsets& offsets, std::uint64_t seed, float* to);
// Implements Stage::set_weights.
void set_weights(Stream& stream, Element element, std::int64_t elements, const float* from, float* master,
                 Half* weights);

}  // namespace sluice::kernels::cuda
