#pragma once

#include <cstdint>

#include "model/namespaces.h"

namespace sluice::kernels {

// What the kernels of CPU and device share.

// Statistics of norms per row: mean (0 for an RMS norm) and 1 / standard deviation.
inline constexpr std::int64_t kNormStatistics = 2;
inline constexpr double kNormEpsilon = 1e-5;

// Of a matrix multiplication of a linear layer. Strides are distances between rows, in elements; 0: dense.
struct LinearOptions {
  std::int64_t inputs_stride = 0;   // of the matrix [rows, inputs]
  std::int64_t outputs_stride = 0;  // of the matrix [rows, outputs]
  bool add = false;                 // of input gradients: adds to the result
};

// Factors of rows: that of row r is at[r * stride]. Null: none.
template <class Real>
struct RowFactors {
  const Real* at = nullptr;
  std::int64_t stride = 1;
  Real* gradients = nullptr;  // of the factors, with the same stride; written by activate_gradient
};

// Where the rows that were sent to experts lie, of the shard of rows from `first` on. Symbols as in
// kernels/expert_mlp.h.
template <class Real>
struct RoutedRows {
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::int64_t k = 0;
  std::int64_t experts = 0;
  const Real* scores = nullptr;
  const std::int32_t* choices = nullptr;
  const std::int32_t* places = nullptr;
};

// Rows of a tensor-parallel rank's shard of the word embedding.
struct EmbeddingShape {
  std::int64_t rows = 0;
  std::int64_t tokens = 0;  // per sequence
  std::int64_t hidden = 0;
  std::int64_t first_token = 0;
  std::int64_t vocab_rows = 0;
};

// Cross-entropy over one tensor-parallel rank's shard of the vocabulary: logits [rows, stride], of which the first
// `columns` are those of tokens from first_token on and the rest is padding. The gradient overwrites the logits.
struct LogitsShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
  std::int64_t first_token = 0;
};

}  // namespace sluice::kernels
