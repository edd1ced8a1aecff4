#pragma once

#include <cstdint>

#include "kernels/attention_sizes.h"
#include "kernels/carver.h"

namespace sluice::kernels::cpu {

// Keys and values of one layer and microbatch, and their gradients, [sequences, tokens, width] each, with the given
// distances between rows. A slice after a prefix of c tokens writes its own rows, from token c on, and reads all rows
// up to them.
template <class T>
struct KeysValues {
  T* keys = nullptr;
  T* values = nullptr;
  std::int64_t stride = 0;
  T* keys_gradient = nullptr;
  T* values_gradient = nullptr;
  std::int64_t gradient_stride = 0;
  std::int64_t tokens = 0;  // per sequence, of all slices

  std::int64_t row(std::int64_t sequence, std::int64_t token) const { return sequence * tokens + token; }
};

// Scratch of attention and its gradient: two tiles and two numbers per row.
template <class T>
struct AttentionScratch {
  explicit AttentionScratch(Carver& carver);
  T* scores = nullptr;
  T* gradient = nullptr;
  T* maximum = nullptr;
  T* sum = nullptr;
};

// Causal attention of a slice's queries over its own keys and those of its prefix. Iterates over tiles of queries by
// keys with an online softmax, so that the scratch size does not depend on the context (Dao et al. 2022).
// queries, out [rows, heads x head_dim]; log_sums, the logarithms of the softmax denominators, [heads, rows] with heads
// `all_rows` apart.
template <class T>
void attention(const AttentionSizes& shape, const T* queries, const KeysValues<T>& keys_values,
               const AttentionScratch<T>& scratch, T* out, T* log_sums, std::int64_t all_rows);

// From the gradient of `out`: writes the gradient of the queries, with rows `stride` apart, and accumulates the
// gradients of these keys and values.
template <class T>
void attention_gradient(const AttentionSizes& shape, const T* queries, const KeysValues<T>& keys_values, const T* out,
                        const T* log_sums, std::int64_t all_rows, const T* gradient, const AttentionScratch<T>& scratch,
                        T* queries_gradient, std::int64_t stride);

}  // namespace sluice::kernels::cpu
