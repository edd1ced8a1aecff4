#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/carver.h"

namespace sluice::kernels::cpu {

// Keys and values of one layer and slice: [sequences x tokens, width] each, rows `stride` apart, and their gradients.
template <class T>
struct KeyRows {
  T* keys = nullptr;
  T* values = nullptr;
  std::int64_t stride = 0;
  T* keys_gradient = nullptr;
  T* values_gradient = nullptr;
  std::int64_t gradient_stride = 0;
  std::int64_t tokens = 0;
};

// Those of one layer in all slices up to the one at work. A slice's block holds keys and values, dense, of one layer
// after the other.
template <class T>
struct KeysValues {
  std::span<std::byte* const> blocks;
  std::span<std::byte* const> gradient_blocks;  // may be empty
  std::span<const std::int64_t> tokens;
  std::int64_t sequences = 1;
  std::int64_t width = 0;
  std::int64_t layer = 0;
  KeyRows<T> own;  // of the slice at work

  // Elements of keys, and as many of values, of one layer.
  static std::int64_t rows_elements(std::int64_t rows, std::int64_t width) { return padded(rows * width); }
  // The slices before.
  std::size_t earlier() const { return blocks.empty() ? 0 : blocks.size() - 1; }
  // Of slice i, where i == earlier() is the one at work.
  KeyRows<T> slice(std::size_t i) const;
  // In this slice's block.
  KeyRows<T> in_block(std::size_t i, std::int64_t slice_tokens) const;
};

// Causal attention of a slice's queries over the keys of its own and all earlier slices; heads / kv_heads query heads
// share a key head (Ainslie et al. 2023). Works through tiles of queries by keys with one running softmax, so that its
// scratch does not depend on the context (Dao et al. 2022).
struct AttentionShape {
  std::int64_t sequences = 1;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
};

// Scratch of both: two tiles and what goes with their rows.
template <class T>
struct AttentionScratch {
  explicit AttentionScratch(Carver<T>& carver);
  T* scores = nullptr;
  T* gradient = nullptr;
  T* maximum = nullptr;
  T* sum = nullptr;
};

// queries, out [rows, heads x head_dim]; log_sums [heads, rows].
template <class T>
void attention(const AttentionShape& shape, const T* queries, const KeysValues<T>& keys_values,
               const AttentionScratch<T>& scratch, T* out, T* log_sums);

// From the gradient of `out`: writes that of the queries (rows `stride` apart), and adds those of all keys and values.
template <class T>
void attention_gradient(const AttentionShape& shape, const T* queries, const KeysValues<T>& keys_values, const T* out,
                        const T* log_sums, const T* gradient, const AttentionScratch<T>& scratch, T* queries_gradient,
                        std::int64_t stride);

}  // namespace sluice::kernels::cpu
