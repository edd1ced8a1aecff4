#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"

namespace sluice::kernels::cpu {
namespace {

// Two tiles of float, with their queries and keys, fit a level-2 cache of 512 KiB.
constexpr std::int64_t kQueryTile = 128;
constexpr std::int64_t kKeyTile = 256;

// Calls visit(row of the first key, tile), in the order of the keys, for each tile that one head of one sequence needs
// for `rows` queries from token `first` of the slice.
template <class T, class Visit>
void for_each_tile(const AttentionSizes& shape, const KeysValues<T>& keys_values, std::int64_t sequence,
                   std::int64_t first, std::int64_t rows, T* scores, const Visit& visit) {
  const std::int64_t seen = shape.context + std::min<std::int64_t>(first + rows, shape.tokens);
  for (std::int64_t key = 0; key < seen; key += kKeyTile) {
    const std::int64_t columns = std::min(kKeyTile, seen - key);
    const SoftmaxTile<T> tile{.scores = scores,
                              .stride = columns,
                              .rows = rows,
                              .columns = columns,
                              .limit = std::min(shape.context + first - key, columns)};
    visit(keys_values.row(sequence, key), tile);
  }
}

}  // namespace

template <class T>
AttentionScratch<T>::AttentionScratch(Carver& carver)
    : scores(carver.take<T>(kQueryTile * kKeyTile)),
      gradient(carver.take<T>(kQueryTile * kKeyTile)),
      maximum(carver.take<T>(kQueryTile)),
      sum(carver.take<T>(kQueryTile)) {}

template <class T>
void attention(const AttentionSizes& shape, const T* queries, const KeysValues<T>& keys_values,
               const AttentionScratch<T>& scratch, T* out, T* log_sums, std::int64_t all_rows) {
  const std::int64_t d = shape.head_dim;
  const std::int64_t stride = shape.heads * d;
  const T scale = T(1) / std::sqrt(static_cast<T>(d));
  for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::int64_t key_head = head / (shape.heads / shape.kv_heads);
      for (std::int64_t first = 0; first < shape.tokens; first += kQueryTile) {
        const std::int64_t rows = std::min(kQueryTile, shape.tokens - first);
        const std::int64_t row = sequence * shape.tokens + first;
        const T* const q = queries + row * stride + head * d;
        T* const o = out + row * stride + head * d;
        bool begun = false;
        for_each_tile(shape, keys_values, sequence, first, rows, scratch.scores,
                      [&](std::int64_t key_row, const SoftmaxTile<T>& tile) {
                        const std::int64_t at = key_row * keys_values.stride + key_head * d;
                        gemm_nt<T>(rows, tile.columns, d, scale, q, stride, keys_values.keys + at, keys_values.stride,
                                   Into::set, tile.scores, tile.stride);
                        softmax_tile<T>(tile, !begun, scratch.maximum, scratch.sum, o, stride, d);
                        gemm_nn<T>(rows, d, tile.columns, tile.scores, tile.stride, keys_values.values + at,
                                   keys_values.stride, begun ? Into::add : Into::set, o, stride);
                        begun = true;
                      });
        finish_softmax<T>(rows, scratch.maximum, scratch.sum, o, stride, d, log_sums + head * all_rows + row);
      }
    }
  }
}

template <class T>
void attention_gradient(const AttentionSizes& shape, const T* queries, const KeysValues<T>& keys_values, const T* out,
                        const T* log_sums, std::int64_t all_rows, const T* gradient, const AttentionScratch<T>& scratch,
                        T* queries_gradient, std::int64_t gradient_stride) {
  const std::int64_t d = shape.head_dim;
  const std::int64_t stride = shape.heads * d;
  const T scale = T(1) / std::sqrt(static_cast<T>(d));
  for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::int64_t key_head = head / (shape.heads / shape.kv_heads);
      for (std::int64_t first = 0; first < shape.tokens; first += kQueryTile) {
        const std::int64_t rows = std::min(kQueryTile, shape.tokens - first);
        const std::int64_t row = sequence * shape.tokens + first;
        const std::int64_t begin = row * stride + head * d;
        const T* const q = queries + begin;
        const T* const d_out = gradient + begin;
        const T* const log_sum = log_sums + head * all_rows + row;
        T* const dq = queries_gradient + row * gradient_stride + head * d;
        row_dot_products<T>(rows, d, out + begin, stride, d_out, stride, scratch.sum);
        bool begun = false;
        for_each_tile(shape, keys_values, sequence, first, rows, scratch.scores,
                      [&](std::int64_t key_row, const SoftmaxTile<T>& tile) {
                        const std::int64_t at = key_row * keys_values.stride + key_head * d;
                        const std::int64_t gradient_at = key_row * keys_values.gradient_stride + key_head * d;
                        const std::int64_t columns = tile.columns;
                        T* const probabilities = tile.scores;
                        T* const d_scores = scratch.gradient;
                        gemm_nt<T>(rows, columns, d, scale, q, stride, keys_values.keys + at, keys_values.stride,
                                   Into::set, tile.scores, columns);
                        gemm_nt<T>(rows, columns, d, T{1}, d_out, stride, keys_values.values + at, keys_values.stride,
                                   Into::set, d_scores, columns);
                        softmax_tile_gradient<T>(tile, log_sum, scratch.sum, scale, d_scores);
                        gemm_tn<T>(columns, d, rows, probabilities, columns, d_out, stride,
                                   keys_values.values_gradient + gradient_at, keys_values.gradient_stride);
                        gemm_tn<T>(columns, d, rows, d_scores, columns, q, stride,
                                   keys_values.keys_gradient + gradient_at, keys_values.gradient_stride);
                        gemm_nn<T>(rows, d, columns, d_scores, columns, keys_values.keys + at, keys_values.stride,
                                   begun ? Into::add : Into::set, dq, gradient_stride);
                        begun = true;
                      });
      }
    }
  }
}

// NOLINTBEGIN(bugprone-macro-parentheses): types
#define SLUICE_INSTANTIATE(T)                                                                                        \
  template struct AttentionScratch<T>;                                                                               \
  template void attention(const AttentionSizes&, const T*, const KeysValues<T>&, const AttentionScratch<T>&, T*, T*, \
                          std::int64_t);                                                                             \
  template void attention_gradient(const AttentionSizes&, const T*, const KeysValues<T>&, const T*, const T*,        \
                                   std::int64_t, const T*, const AttentionScratch<T>&, T*, std::int64_t);
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(double)
#undef SLUICE_INSTANTIATE
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace sluice::kernels::cpu
