#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention_sizes.h"
#include "kernels/carver.h"

namespace sluice::kernels::cpu {

// Keys and values of one layer and slice, [sequences x tokens, width] each with the given row strides, and their
// gradients.
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

// Keys and values of one layer in all slices up to the current one. A slice's block holds the dense keys and values of
// its layers, one layer after the other.
template <class T>
struct KeysValues {
  std::span<std::byte* const> blocks;
  std::span<std::byte* const> gradient_blocks;  // may be empty
  std::span<const std::int64_t> tokens;
  std::int64_t sequences = 1;
  std::int64_t width = 0;
  std::int64_t layer = 0;
  KeyRows<T> own;  // of the current slice

  // Number of elements of the keys of one layer, and of its values.
  static std::int64_t rows_elements(std::int64_t rows, std::int64_t width) { return padded(rows * width); }
  // Number of earlier slices.
  std::size_t earlier() const { return blocks.empty() ? 0 : blocks.size() - 1; }
  // Returns the rows of slice i; i == earlier() is the current slice.
  KeyRows<T> slice(std::size_t i) const;
  // Returns the rows in the block of slice i.
  KeyRows<T> in_block(std::size_t i, std::int64_t slice_tokens) const;
};

// Scratch of attention and its gradient: two tiles and two numbers per row.
template <class T>
struct AttentionScratch {
  explicit AttentionScratch(Carver<T>& carver);
  T* scores = nullptr;
  T* gradient = nullptr;
  T* maximum = nullptr;
  T* sum = nullptr;
};

// Causal attention of a slice's queries over the keys of this and all earlier slices. Iterates over tiles of queries by
// keys with an online softmax, so that the scratch size does not depend on the context (Dao et al. 2022).
// queries, out [rows, heads x head_dim]; log_sums [heads, rows], the logarithms of the softmax denominators.
template <class T>
void attention(const AttentionSizes& shape, const T* queries, const KeysValues<T>& keys_values,
               const AttentionScratch<T>& scratch, T* out, T* log_sums);

// From the gradient of `out`: writes the gradient of the queries, with rows `stride` apart, and accumulates the
// gradients of all keys and values.
template <class T>
void attention_gradient(const AttentionSizes& shape, const T* queries, const KeysValues<T>& keys_values, const T* out,
                        const T* log_sums, const T* gradient, const AttentionScratch<T>& scratch, T* queries_gradient,
                        std::int64_t stride);

}  // namespace sluice::kernels::cpu
