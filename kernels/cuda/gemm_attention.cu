#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cuda/gemm_attention.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

// Columns of the scores of one segment begin at a multiple of this, so that products can load them as vectors.
constexpr std::int64_t kAlignment = 8;
std::int64_t aligned(std::int64_t columns) { return (columns + kAlignment - 1) / kAlignment * kAlignment; }

// How many columns those of a slice may need, however what is before it was cut.
std::int64_t most_columns(const AttentionShape& shape) {
  const std::int64_t earlier = std::min<std::int64_t>(shape.context, kMostSegments - 1);
  return shape.context + (kAlignment - 1) * earlier + shape.tokens;
}

// How the work is cut: tiles of `rows` queries of one sequence by the heads of `kv_heads` key heads.
struct Tiles {
  int rows = 0;
  int kv_heads = 0;
  std::int64_t stride = 0;        // of a row of scores, in floats
  std::int64_t score_bytes = 0;   // of one matrix of scores
  std::int64_t output_bytes = 0;  // of a tile's output in float32
};

Tiles tiles_of(const AttentionShape& shape, int matrices, std::int64_t workspace) {
  constexpr int kMostRows = 512;  // of more, a causal mask wastes too much
  constexpr int kFewRows = 64;    // of fewer, products become slow: rather fewer heads
  Tiles tiles;
  tiles.stride = padded(most_columns(shape));
  const int group = shape.heads / shape.kv_heads;
  const auto set = [&](int rows, int kv_heads) {
    const std::int64_t all = std::int64_t{rows} * kv_heads * group;
    tiles.rows = rows;
    tiles.kv_heads = kv_heads;
    tiles.score_bytes = all * tiles.stride * std::int64_t{sizeof(float)};
    tiles.output_bytes = padded(all * shape.head_dim) * std::int64_t{sizeof(float)};
    return matrices * tiles.score_bytes + tiles.output_bytes <= workspace;
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

// The scores of a tile: heads one after the other, `rows` each. Row r sees `seen + r` columns but for those between
// segments, of `columns`.
struct TilePlace {
  int rows;
  std::int64_t stride;
  std::int64_t columns;
  std::int64_t seen;
  std::int64_t log_sums_step;  // from one head to the next
};
// Where the columns of segments begin, and how many they are.
struct SegmentColumns {
  int count = 0;
  std::int32_t begin[kMostSegments];
  std::int32_t tokens[kMostSegments];
};

// Writes 16-bit numbers over the float32 ones of a row, from its beginning on: number i of a chunk that all threads
// have read comes where none is that is still to be read.
template <class T, class Make>
SLUICE_DEVICE void halve_in_place(float* row, std::int64_t columns, const Make& make) {
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
  SegmentColumns segments;
  float* scores;
  float* log_sums;

  SLUICE_DEVICE void operator()() const {
    const int r = block_x();
    const std::int64_t head = block_y();
    float* const row = scores + (head * place.rows + r) * place.stride;
    const std::int64_t seen = place.seen + r;
    float highest = -FLT_MAX;
    float sum = 0;
    for (int i = 0; i < segments.count; ++i) {
      const float* const of_segment = row + segments.begin[i];
      const std::int64_t here = seen - segments.begin[i];
      const auto end = static_cast<int>(here < segments.tokens[i] ? here : segments.tokens[i]);
      for (int column = thread(); column < end; column += threads()) {
        const float score = of_segment[column];
        const float before = highest;
        highest = larger(highest, score);
        sum = sum * exponential(before - highest) + exponential(score - highest);
      }
    }
    const float maximum = block_maximum(highest);
    sum = block_sum(sum * exponential(highest - maximum));
    if (thread() == 0) log_sums[head * place.log_sums_step + r] = maximum + logarithm(sum);
    const float inverse = 1.0F / sum;
    halve_in_place<T>(row, place.columns, [&](std::int64_t column) {
      return column < seen ? exponential(row[column] - maximum) * inverse : 0.0F;
    });
  }
};

// Scores become probabilities; their gradients, p (gradient - product), which is that of the scaled scores.
template <class T>
struct SoftmaxGradient {
  static constexpr int kThreads = kRowThreads;
  TilePlace place;
  float* scores;
  float* gradients;
  const float* log_sums;
  const float* products;

  SLUICE_DEVICE void operator()() const {
    const int r = block_x();
    const std::int64_t head = block_y();
    const std::int64_t at = (head * place.rows + r) * place.stride;
    float* const row = scores + at;
    float* const gradient = gradients + at;
    const std::int64_t seen = place.seen + r;
    const float log_sum = log_sums[head * place.log_sums_step + r];
    const float product = products[head * place.log_sums_step + r];
    halve_in_place<T>(gradient, place.columns, [&](std::int64_t column) {
      return column < seen ? exponential(row[column] - log_sum) * (gradient[column] - product) : 0.0F;
    });
    halve_in_place<T>(row, place.columns,
                      [&](std::int64_t column) { return column < seen ? exponential(row[column] - log_sum) : 0.0F; });
  }
};

// [rows, width] float32 into 16-bit rows, `stride` apart.
template <class T>
struct Narrow {
  static constexpr int kThreads = kRowThreads;
  const float* from;
  int width;
  bool whole;
  std::int64_t stride;
  T* to;
  SLUICE_DEVICE void operator()() const {
    const std::int64_t row = block_x();
    for_each_chunk(width, [&](int column) {
      float numbers[kChunk];
      load_chunk(from + row * width, column, width, whole, numbers);
      store_chunk(to + row * stride, column, width, whole, numbers);
    });
  }
};

template <class T>
struct RowProducts {
  static constexpr int kThreads = kRowThreads;
  AttentionShape shape;
  bool whole;
  const T* out;
  const T* gradient;
  float* products;

  // A warp takes a head.
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
      if (lane() == 0) products[head * rows + row] = sum;
    }
  }
};

const Half* at(const void* numbers, std::int64_t i) { return static_cast<const Half*>(numbers) + i; }

// What both directions walk through, and the products of one tile. Products of a batch are those of key heads, a query
// head of each at a time: so no two of a batch add to one place.
class Walk {
 public:
  Walk(const AttentionShape& shape, Element element, const KeySegments& segments, int matrices, std::int64_t workspace,
       std::byte* scratch, Device& device, Stream& stream)
      : shape_(shape),
        element_(element),
        segments_(segments),
        tiles_(tiles_of(shape, matrices, workspace)),
        group_(shape.heads / shape.kv_heads),
        scale_(1.0F / std::sqrt(static_cast<float>(shape.head_dim))),
        scores_(reinterpret_cast<float*>(scratch)),
        gradients_(reinterpret_cast<float*>(scratch + (matrices - 1) * tiles_.score_bytes)),
        output_(reinterpret_cast<float*>(scratch + matrices * tiles_.score_bytes)),
        device_(device),
        stream_(stream) {
    for (int i = 1; i < segments.count; ++i) begin_[i] = begin_[i - 1] + aligned(segments.tokens[i - 1]);
  }

  // Calls visit() for every tile.
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

  // The first query of the tile, in a matrix with rows `stride` apart that begin with head 0.
  std::int64_t query_at(std::int64_t stride) const {
    return row() * stride + std::int64_t{kv_first_} * group_ * shape_.head_dim;
  }
  std::int64_t row() const { return std::int64_t{sequence_} * shape_.tokens + first_; }
  std::int64_t log_sums_at() const { return std::int64_t{kv_first_} * group_ * shape_.rows() + row(); }
  TilePlace place() const {
    return {.rows = rows_,
            .stride = tiles_.stride,
            .columns = own_column() + first_ + rows_,
            .seen = own_column() + first_ + 1,
            .log_sums_step = shape_.rows()};
  }
  SegmentColumns columns() const {
    SegmentColumns out;
    out.count = segments_.count;
    for (int i = 0; i < segments_.count; ++i) {
      out.begin[i] = static_cast<std::int32_t>(begin_[i]);
      out.tokens[i] = segments_.tokens[i];
    }
    return out;
  }
  Grid softmax_grid() const {
    Grid grid = row_grid(rows_, (own_column() + first_ + rows_) * kChunk);
    grid.blocks_y = kv_heads_ * group_;
    return grid;
  }
  float scale() const { return scale_; }
  float* scores() const { return scores_; }
  float* gradients() const { return gradients_; }

  // into [tile] = factor x queries x transposed keys, or values.
  void make_scores(const void* queries, bool of_values, float factor, float* into) const {
    const std::int64_t width = shape_.query_width();
    for_each_segment([&](const Segment& segment) {
      for (int g = 0; g < group_; ++g) {
        MatrixProduct product = batch();
        product.rows = rows_;
        product.columns = segment.tokens;
        product.inner = shape_.head_dim;
        product.a = at(queries, query_at(width) + std::int64_t{g} * shape_.head_dim);
        product.a_stride = width;
        product.a_step = std::int64_t{group_} * shape_.head_dim;
        set_keys(product, segment, of_values);
        product.b_transposed = true;
        product.c = into + g * head_step() + segment.column;
        product.c_stride = tiles_.stride;
        product.c_step = group_ * head_step();
        product.out = Element::float32;
        product.alpha = factor;
        device_.multiply(product, stream_);
      }
    });
  }

  // to (16-bit rows `stride` apart) = factor x halved scores x values, or keys. Over several segments in float32 first.
  void multiply_scores(const float* halved, bool by_values, float factor, Half* to, std::int64_t stride) const {
    const std::int64_t width = std::int64_t{kv_heads_} * group_ * shape_.head_dim;
    const bool at_once = segments_.count == 1;
    bool begun = false;
    for_each_segment([&](const Segment& segment) {
      for (int g = 0; g < group_; ++g) {
        MatrixProduct product = batch();
        product.rows = rows_;
        product.columns = shape_.head_dim;
        product.inner = segment.tokens;
        set_halved(product, halved, segment, g);
        set_keys(product, segment, by_values);
        const std::int64_t head = std::int64_t{g} * shape_.head_dim;
        product.c = at_once ? static_cast<void*>(to + head) : output_ + head;
        product.c_stride = at_once ? stride : width;
        product.c_step = std::int64_t{group_} * shape_.head_dim;
        product.out = at_once ? element_ : Element::float32;
        product.alpha = factor;
        product.beta = begun ? 1.0F : 0.0F;
        device_.multiply(product, stream_);
      }
      begun = true;
    });
    if (at_once) return;
    with_half(element_, [&]<class T>(HalfType<T>) {
      launch(stream_, row_grid(rows_, width),
             Narrow<T>{output_, static_cast<int>(width), in_whole_chunks({width, stride, shape_.head_dim}), stride,
                       as<T>(to)});
    });
  }

  // Adds factor x transposed halved scores x rows (of queries' shape) to the gradients of keys, or values.
  void add_to_keys(const float* halved, const void* rows, float factor, bool of_values) const {
    const std::int64_t width = shape_.query_width();
    for_each_segment([&](const Segment& segment) {
      for (int g = 0; g < group_; ++g) {
        MatrixProduct product = batch();
        product.rows = segment.tokens;
        product.columns = shape_.head_dim;
        product.inner = rows_;
        set_halved(product, halved, segment, g);
        product.a_transposed = true;
        product.b = at(rows, query_at(width) + std::int64_t{g} * shape_.head_dim);
        product.b_stride = width;
        product.b_step = std::int64_t{group_} * shape_.head_dim;
        product.c = segments_.keys_gradient[segment.index] + segment.at + (of_values ? segment.values : 0);
        product.c_stride = shape_.key_width();
        product.c_step = shape_.head_dim;
        product.out = Element::float32;
        product.alpha = factor;
        product.beta = 1;
        device_.multiply(product, stream_);
      }
    });
  }

 private:
  // Of the keys that the tile sees.
  struct Segment {
    int index = 0;
    std::int64_t tokens = 0;
    std::int64_t column = 0;
    std::int64_t at = 0;      // of its first key of the tile's first key head
    std::int64_t values = 0;  // from there to the value
  };

  template <class Visit>
  void for_each_segment(const Visit& visit) const {
    for (int i = 0; i < segments_.count; ++i) {
      const std::int64_t all = segments_.tokens[i];
      const bool own = i + 1 == segments_.count;
      visit(Segment{.index = i,
                    .tokens = own ? std::int64_t{first_} + rows_ : all,
                    .column = begin_[i],
                    .at = sequence_ * all * shape_.key_width() + std::int64_t{kv_first_} * shape_.head_dim,
                    .values = values_after(shape_.sequences * all, shape_.key_width())});
    }
  }
  std::int64_t own_column() const { return begin_[segments_.count - 1]; }
  std::int64_t head_step() const { return rows_ * tiles_.stride; }
  MatrixProduct batch() const {
    MatrixProduct product;
    product.in = element_;
    product.batch = kv_heads_;
    return product;
  }
  void set_keys(MatrixProduct& product, const Segment& segment, bool values) const {
    product.b = at(segments_.keys[segment.index], segment.at + (values ? segment.values : 0));
    product.b_stride = shape_.key_width();
    product.b_step = shape_.head_dim;
  }
  void set_halved(MatrixProduct& product, const float* halved, const Segment& segment, int g) const {
    product.a = at(halved + g * head_step(), segment.column);
    product.a_stride = 2 * tiles_.stride;
    product.a_step = 2 * group_ * head_step();
  }

  const AttentionShape& shape_;
  Element element_;
  const KeySegments& segments_;
  Tiles tiles_;
  std::int64_t begin_[kMostSegments] = {};  // columns of segments
  int group_;
  float scale_;  // of scores
  float* scores_;
  float* gradients_;
  float* output_;
  Device& device_;
  Stream& stream_;
  int sequence_ = 0;
  int kv_first_ = 0;
  int kv_heads_ = 0;
  int first_ = 0;
  int rows_ = 0;
};

}  // namespace

std::int64_t gemm_attention_scratch_bytes(const AttentionShape& shape, std::int64_t workspace) {
  std::int64_t most = 0;
  for (const int matrices : {1, 2}) {
    const Tiles tiles = tiles_of(shape, matrices, workspace);
    most = std::max(most, matrices * tiles.score_bytes + tiles.output_bytes);
  }
  return most;
}

void gemm_attention_forward(const AttentionForward& call, Device& device, Stream& stream, std::int64_t workspace) {
  Walk walk(call.shape, call.element, call.segments, 1, workspace, call.scratch, device, stream);
  const std::int64_t width = call.shape.query_width();
  walk.for_each_tile([&] {
    walk.make_scores(call.queries, false, walk.scale(), walk.scores());
    with_half(call.element, [&]<class T>(HalfType<T>) {
      launch(stream, walk.softmax_grid(),
             Softmax<T>{walk.place(), walk.columns(), walk.scores(), call.log_sums + walk.log_sums_at()});
    });
    walk.multiply_scores(walk.scores(), true, 1, static_cast<Half*>(call.out) + walk.query_at(width), width);
  });
}

void gemm_attention_backward(const AttentionBackward& call, Device& device, Stream& stream, std::int64_t workspace) {
  Walk walk(call.shape, call.element, call.segments, 2, workspace, call.scratch, device, stream);
  walk.for_each_tile([&] {
    walk.make_scores(call.queries, false, walk.scale(), walk.scores());
    walk.make_scores(call.out_gradient, true, 1, walk.gradients());
    with_half(call.element, [&]<class T>(HalfType<T>) {
      launch(stream, walk.softmax_grid(),
             SoftmaxGradient<T>{walk.place(), walk.scores(), walk.gradients(), call.log_sums + walk.log_sums_at(),
                                call.products + walk.log_sums_at()});
    });
    walk.add_to_keys(walk.scores(), call.out_gradient, 1, true);
    walk.add_to_keys(walk.gradients(), call.queries, walk.scale(), false);
    walk.multiply_scores(walk.gradients(), false, walk.scale(),
                         static_cast<Half*>(call.queries_gradient) + walk.query_at(call.queries_gradient_stride),
                         call.queries_gradient_stride);
  });
}

void row_products(const AttentionShape& shape, Element element, const void* out, const void* out_gradient,
                  float* products, Stream& stream) {
  with_half(element, [&]<class T>(HalfType<T>) {
    launch(stream, Grid{.blocks_x = static_cast<int>(shape.rows()), .threads = std::min(shape.heads, 8) * kWarp},
           RowProducts<T>{shape, in_whole_chunks({shape.head_dim}), static_cast<const T*>(out),
                          static_cast<const T*>(out_gradient), products});
  });
}

}  // namespace sluice::kernels::cuda
