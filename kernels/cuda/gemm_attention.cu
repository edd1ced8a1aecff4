#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cuda/gemm_attention.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

// Tile sizes: `rows` queries of one sequence by the query heads of `kv_heads` key heads.
struct Tiles {
  int rows = 0;
  int kv_heads = 0;
  std::int64_t stride = 0;       // of rows of scores, in floats
  std::int64_t score_bytes = 0;  // per matrix of scores
};

Tiles tiles_of(const AttentionSizes& shape, int matrices, std::int64_t workspace) {
  constexpr int kMostRows = 512;  // larger tiles waste too much on the causal mask
  constexpr int kFewRows = 64;    // GEMMs with fewer rows are slow: reduce the heads first
  Tiles tiles;
  tiles.stride = padded(shape.context + shape.tokens);
  const int group = shape.heads / shape.kv_heads;
  const auto set = [&](int rows, int kv_heads) {
    const std::int64_t all = std::int64_t{rows} * kv_heads * group;
    tiles.rows = rows;
    tiles.kv_heads = kv_heads;
    tiles.score_bytes = all * tiles.stride * std::int64_t{sizeof(float)};
    return matrices * tiles.score_bytes <= workspace;
  };
  int rows = std::min(shape.tokens, kMostRows);
  int kv_heads = shape.kv_heads;
  while (!set(rows, kv_heads)) {
    if (rows > kFewRows) {
      rows = std::max(rows / 2, kFewRows);
    } else if (kv_heads > 1) {
      kv_heads = (kv_heads + 1) / 2;
    } else if (rows > 1) {
      rows = (rows + 1) / 2;
    } else {
      break;
    }
  }
  return tiles;
}

// Layout of the scores of a tile: [heads, rows, columns]. Row r attends to the first `seen + r` of `columns` columns.
struct TilePlace {
  int rows;
  std::int64_t stride;
  std::int64_t columns;
  std::int64_t seen;
  std::int64_t log_sums_step;  // distance between heads
};

// Replaces the float32 numbers of a row by 16-bit numbers, packed at its start. Each chunk is written after all threads
// have read it, and overlaps none that is still to be read.
template <class T, class Make>
SLUICE_DEVICE void round_in_place(float* row, std::int64_t columns, const Make& make) {
  T* const out = reinterpret_cast<T*>(row);
  for (std::int64_t first = 0; first < columns; first += threads()) {
    const std::int64_t column = first + thread();
    const float number = column < columns ? make(column) : 0.0F;
    sync_block();
    if (column < columns) out[column] = from_float<T>(number);
  }
}

template <class T>
struct Softmax {
  static constexpr int kThreads = kRowThreads;
  TilePlace place;
  float* scores;
  float* log_sums;

  SLUICE_DEVICE void operator()() const {
    const int r = block_x();
    const std::int64_t head = block_y();
    float* const row = scores + (head * place.rows + r) * place.stride;
    const std::int64_t seen = place.seen + r;
    float highest = -FLT_MAX;
    float sum = 0;
    for (std::int64_t column = thread(); column < seen; column += threads()) {
      const float score = row[column];
      const float before = highest;
      highest = larger(highest, score);
      sum = sum * exponential(before - highest) + exponential(score - highest);
    }
    const float maximum = block_maximum(highest);
    sum = block_sum(sum * exponential(highest - maximum));
    if (thread() == 0) log_sums[head * place.log_sums_step + r] = maximum + logarithm(sum);
    const float inverse = 1.0F / sum;
    round_in_place<T>(row, place.columns, [&](std::int64_t column) {
      return column < seen ? exponential(row[column] - maximum) * inverse : 0.0F;
    });
  }
};

// Replaces scores by probabilities p, and the gradients of p by those of the scaled scores, p (gradient - dot product).
template <class T>
struct SoftmaxGradient {
  static constexpr int kThreads = kRowThreads;
  TilePlace place;
  float* scores;
  float* gradients;
  const float* log_sums;
  const float* dot_products;

  SLUICE_DEVICE void operator()() const {
    const int r = block_x();
    const std::int64_t head = block_y();
    const std::int64_t at = (head * place.rows + r) * place.stride;
    float* const row = scores + at;
    float* const gradient = gradients + at;
    const std::int64_t seen = place.seen + r;
    const float log_sum = log_sums[head * place.log_sums_step + r];
    const float product = dot_products[head * place.log_sums_step + r];
    round_in_place<T>(gradient, place.columns, [&](std::int64_t column) {
      return column < seen ? exponential(row[column] - log_sum) * (gradient[column] - product) : 0.0F;
    });
    round_in_place<T>(row, place.columns,
                      [&](std::int64_t column) { return column < seen ? exponential(row[column] - log_sum) : 0.0F; });
  }
};

template <class T>
struct RowDotProducts {
  static constexpr int kThreads = kRowThreads;
  AttentionSizes shape;
  bool whole;
  const T* out;
  const T* gradient;
  float* dot_products;

  // One head per warp.
  SLUICE_DEVICE void operator()() const {
    const std::int64_t row = block_x();
    const std::int64_t rows = std::int64_t{shape.sequences} * shape.tokens;
    const int d = shape.head_dim;
    for (int head = warp(); head < shape.heads; head += threads() / kWarp) {
      const std::int64_t at = (row * shape.heads + head) * d;
      float sum = 0;
      for (int column = lane() * kChunk; column < d; column += kWarp * kChunk) {
        float a[kChunk];
        float b[kChunk];
        load_chunk(out + at, column, d, whole, a);
        load_chunk(gradient + at, column, d, whole, b);
        for (int i = 0; i < kChunk; ++i) sum += a[i] * b[i];
      }
      sum = warp_sum(sum);
      if (lane() == 0) dot_products[head * rows + row] = sum;
    }
  }
};

const Half* at(const void* numbers, std::int64_t i) { return static_cast<const Half*>(numbers) + i; }

// Iteration over tiles, for both directions, and the GEMMs of one tile. A batch of GEMMs has one query head of each key
// head, so that no two GEMMs of a batch accumulate into the same matrix.
class TileLoop {
 public:
  TileLoop(const AttentionSizes& shape, Element element, const KeyRows& keys, int matrices, std::int64_t workspace,
           std::byte* scratch, Device& device, Stream& stream)
      : shape_(shape),
        element_(element),
        keys_(keys),
        tiles_(tiles_of(shape, matrices, workspace)),
        group_(shape.heads / shape.kv_heads),
        scale_(1.0F / std::sqrt(static_cast<float>(shape.head_dim))),
        scores_(reinterpret_cast<float*>(scratch)),
        gradients_(reinterpret_cast<float*>(scratch + (matrices - 1) * tiles_.score_bytes)),
        device_(device),
        stream_(stream) {}

  // Calls visit() for each tile.
  template <class Visit>
  void for_each_tile(const Visit& visit) {
    for (sequence_ = 0; sequence_ < shape_.sequences; ++sequence_) {
      for (kv_first_ = 0; kv_first_ < shape_.kv_heads; kv_first_ += tiles_.kv_heads) {
        kv_heads_ = std::min(tiles_.kv_heads, shape_.kv_heads - kv_first_);
        for (first_ = 0; first_ < shape_.tokens; first_ += tiles_.rows) {
          rows_ = std::min(tiles_.rows, shape_.tokens - first_);
          visit();
        }
      }
    }
  }

  // Returns the offset of the tile's first query in a matrix whose rows are `stride` apart and start with head 0.
  std::int64_t query_at(std::int64_t stride) const {
    return row() * stride + std::int64_t{kv_first_} * group_ * shape_.head_dim;
  }
  std::int64_t row() const { return std::int64_t{sequence_} * shape_.tokens + first_; }
  std::int64_t log_sums_at() const { return std::int64_t{kv_first_} * group_ * shape_.rows() + row(); }
  TilePlace place() const {
    return {.rows = rows_,
            .stride = tiles_.stride,
            .columns = columns(),
            .seen = shape_.context + first_ + 1,
            .log_sums_step = shape_.rows()};
  }
  Grid softmax_grid() const {
    Grid grid = row_grid(rows_, columns() * kChunk);
    grid.blocks_y = kv_heads_ * group_;
    return grid;
  }
  float scale() const { return scale_; }
  float* scores() const { return scores_; }
  float* gradients() const { return gradients_; }

  // into [tile] = factor x queries x keys^T (values^T if `of_values`).
  void compute_scores(const void* queries, bool of_values, float factor, float* into) const {
    const std::int64_t width = shape_.query_width();
    for (int g = 0; g < group_; ++g) {
      GemmCall gemm = batch();
      gemm.rows = rows_;
      gemm.columns = columns();
      gemm.inner = shape_.head_dim;
      gemm.a = at(queries, query_at(width) + std::int64_t{g} * shape_.head_dim);
      gemm.a_stride = width;
      gemm.a_step = std::int64_t{group_} * shape_.head_dim;
      set_keys(gemm, of_values);
      gemm.b_transposed = true;
      gemm.c = into + g * head_step();
      gemm.c_stride = tiles_.stride;
      gemm.c_step = group_ * head_step();
      gemm.out = Element::float32;
      gemm.alpha = factor;
      device_.multiply(gemm, stream_);
    }
  }

  // to (16-bit rows `stride` apart) = factor x rounded scores x keys (values if `by_values`).
  void multiply_scores(const float* rounded, bool by_values, float factor, Half* to, std::int64_t stride) const {
    for (int g = 0; g < group_; ++g) {
      GemmCall gemm = batch();
      gemm.rows = rows_;
      gemm.columns = shape_.head_dim;
      gemm.inner = columns();
      set_rounded(gemm, rounded, g);
      set_keys(gemm, by_values);
      gemm.c = to + std::int64_t{g} * shape_.head_dim;
      gemm.c_stride = stride;
      gemm.c_step = std::int64_t{group_} * shape_.head_dim;
      gemm.out = element_;
      gemm.alpha = factor;
      device_.multiply(gemm, stream_);
    }
  }

  // Adds factor x rounded scores^T x rows (of the queries' shape) to the gradients of keys (values if `of_values`).
  void add_to_keys(const float* rounded, const void* rows, float factor, bool of_values) const {
    const std::int64_t width = shape_.query_width();
    for (int g = 0; g < group_; ++g) {
      GemmCall gemm = batch();
      gemm.rows = columns();
      gemm.columns = shape_.head_dim;
      gemm.inner = rows_;
      set_rounded(gemm, rounded, g);
      gemm.a_transposed = true;
      gemm.b = at(rows, query_at(width) + std::int64_t{g} * shape_.head_dim);
      gemm.b_stride = width;
      gemm.b_step = std::int64_t{group_} * shape_.head_dim;
      gemm.c = keys_.keys_gradient + key_at(of_values);
      gemm.c_stride = shape_.key_width();
      gemm.c_step = shape_.head_dim;
      gemm.out = Element::float32;
      gemm.alpha = factor;
      gemm.beta = 1;
      device_.multiply(gemm, stream_);
    }
  }

 private:
  // Returns the number of keys that the tile reads: its last query attends to all of them.
  std::int64_t columns() const { return shape_.context + first_ + rows_; }
  // Returns the offset in KeyRows of the sequence's first key, or value, of the tile's first key head.
  std::int64_t key_at(bool values) const {
    const std::int64_t width = shape_.key_width();
    const std::int64_t first = sequence_ * keys_.tokens * width + std::int64_t{kv_first_} * shape_.head_dim;
    return first + (values ? values_after(shape_.sequences * keys_.tokens, width) : 0);
  }
  std::int64_t head_step() const { return rows_ * tiles_.stride; }
  GemmCall batch() const {
    GemmCall gemm;
    gemm.in = element_;
    gemm.batch = kv_heads_;
    return gemm;
  }
  void set_keys(GemmCall& gemm, bool values) const {
    gemm.b = at(keys_.keys, key_at(values));
    gemm.b_stride = shape_.key_width();
    gemm.b_step = shape_.head_dim;
  }
  void set_rounded(GemmCall& gemm, const float* rounded, int g) const {
    gemm.a = at(rounded + g * head_step(), 0);
    gemm.a_stride = 2 * tiles_.stride;
    gemm.a_step = 2 * group_ * head_step();
  }

  const AttentionSizes& shape_;
  Element element_;
  const KeyRows& keys_;
  Tiles tiles_;
  int group_;
  float scale_;  // of scores
  float* scores_;
  float* gradients_;
  Device& device_;
  Stream& stream_;
  int sequence_ = 0;
  int kv_first_ = 0;
  int kv_heads_ = 0;
  int first_ = 0;
  int rows_ = 0;
};

}  // namespace

std::int64_t gemm_attention_scratch_bytes(const AttentionSizes& shape, std::int64_t workspace) {
  std::int64_t most = 0;
  for (const int matrices : {1, 2}) {
    const Tiles tiles = tiles_of(shape, matrices, workspace);
    most = std::max(most, matrices * tiles.score_bytes);
  }
  return most;
}

void gemm_attention_forward(const AttentionForward& call, Device& device, Stream& stream, std::int64_t workspace) {
  TileLoop tiles(call.shape, call.element, call.keys, 1, workspace, call.scratch, device, stream);
  const std::int64_t width = call.shape.query_width();
  tiles.for_each_tile([&] {
    tiles.compute_scores(call.queries, false, tiles.scale(), tiles.scores());
    with_half(call.element, [&]<class T>(HalfType<T>) {
      launch(stream, tiles.softmax_grid(),
             Softmax<T>{tiles.place(), tiles.scores(), call.log_sums + tiles.log_sums_at()});
    });
    tiles.multiply_scores(tiles.scores(), true, 1, static_cast<Half*>(call.out) + tiles.query_at(width), width);
  });
}

void gemm_attention_backward(const AttentionBackward& call, Device& device, Stream& stream, std::int64_t workspace) {
  TileLoop tiles(call.shape, call.element, call.keys, 2, workspace, call.scratch, device, stream);
  tiles.for_each_tile([&] {
    tiles.compute_scores(call.queries, false, tiles.scale(), tiles.scores());
    tiles.compute_scores(call.out_gradient, true, 1, tiles.gradients());
    with_half(call.element, [&]<class T>(HalfType<T>) {
      launch(stream, tiles.softmax_grid(),
             SoftmaxGradient<T>{tiles.place(), tiles.scores(), tiles.gradients(), call.log_sums + tiles.log_sums_at(),
                                call.dot_products + tiles.log_sums_at()});
    });
    tiles.add_to_keys(tiles.scores(), call.out_gradient, 1, true);
    tiles.add_to_keys(tiles.gradients(), call.queries, tiles.scale(), false);
    tiles.multiply_scores(tiles.gradients(), false, tiles.scale(),
                          static_cast<Half*>(call.queries_gradient) + tiles.query_at(call.queries_gradient_stride),
                          call.queries_gradient_stride);
  });
}

void row_dot_products(const AttentionSizes& shape, Element element, const void* out, const void* out_gradient,
                      float* dot_products, Stream& stream) {
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, Grid{.blocks_x = static_cast<int>(shape.rows()), .threads = std::min(shape.heads, 8) * kWarp},
           RowDotProducts<T>{shape, in_whole_chunks({shape.head_dim}), static_cast<const T*>(out),
                             static_cast<const T*>(out_gradient), dot_products});
  });
}

}  // namespace sluice::kernels::cuda
