#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/flash_tiles.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

constexpr int kQueries = 64;  // per tile

int query_tiles(const AttentionSizes& shape) { return (shape.tokens + kQueries - 1) / kQueries; }

// Layout of the float32 gradient of a tile's queries in scratch: in the order in which the threads of a block hold it,
// for coalesced atomic additions. Warps are arranged 2 by 2 over queries and columns, each with 32 queries and half of
// the columns, which are padded with zeros to a multiple of 32.
template <int kHeadDim>
struct QueryGradient {
  static constexpr int kThreads = 128;
  static constexpr int kM = 2;
  static constexpr int kColumns = Tile<kHeadDim>::kLoadedPieces * 8;
  static constexpr int kN = kColumns / 16;
  static constexpr int kElements = kQueries * kColumns;
  // Returns the number of consecutive elements of a thread.
  SLUICE_DEVICE static int piece() { return has_wide_atomics() ? 4 : 1; }

  SLUICE_DEVICE static int first_query() { return warp() % 2 * 32; }
  SLUICE_DEVICE static int first_column() { return warp() / 2 * (kColumns / 2); }
  // Returns the offset of element e of tile [m][n] from element 0 of the first tile, which is at thread() * piece().
  SLUICE_DEVICE static int at(int m, int n, int e) {
    return ((m * kN + n) * 4 + e) / piece() * kThreads * piece() + e % piece();
  }
};

// A block owns a tile of keys of a key head: it iterates over all queries that attend to them, of all query heads of
// the group, and adds the gradients of the keys once. Matrices are transposed, with keys as rows, so that probabilities
// and their gradients are operands of the next matrix multiplication without leaving registers. Each of 4 warps has 16
// kM keys.
template <class T, int kHeadDim>
struct FlashBackward {
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 2;
  static constexpr int kM = kHeadDim == 64 ? 2 : 1;  // limited by registers
  static constexpr int kN = kHeadDim / 8;
  static constexpr int kKeys = 64 * kM;
  static constexpr int kPart = kQueries / kM;  // queries whose scores are in registers at the same time
  static constexpr int kSharedBytes =
      (2 * kKeys + 2 * kQueries) * Tile<kHeadDim>::kRowBytes + kKeys * Tile<kQueries>::kRowBytes + 2 * kQueries * 4;

  FlashShape shape;
  const T* queries;
  const T* keys;
  const float* log_sums;
  const T* out_gradient;
  const float* dot_products;
  float* queries_gradient;  // [head, sequence, tile], each in the layout of QueryGradient
  float* keys_gradient;
  bool accumulate;
  T* key_rows_gradient;
  std::int64_t stride;  // of its rows
  float scale;
  int query_tiles;

  struct Shared {
    Tile<kHeadDim> keys;
    Tile<kHeadDim> values;
    Tile<kHeadDim> queries;
    Tile<kHeadDim> out_gradient;
    Tile<kQueries> scores_gradient;  // [keys, queries]
    float* log2_sums;                // [queries], followed by their dot products
    SLUICE_DEVICE const float* dot_products() const { return log2_sums + kQueries; }
  };
  SLUICE_DEVICE static Shared shared() {
    constexpr int kRowBytes = Tile<kHeadDim>::kRowBytes;
    unsigned char* const keys = shared_memory();
    unsigned char* const values = keys + kKeys * kRowBytes;
    unsigned char* const queries = values + kKeys * kRowBytes;
    unsigned char* const out_gradient = queries + kQueries * kRowBytes;
    unsigned char* const scores_gradient = out_gradient + kQueries * kRowBytes;
    auto* const log2_sums = reinterpret_cast<float*>(scores_gradient + kKeys * Tile<kQueries>::kRowBytes);
    return {{keys}, {values}, {queries}, {out_gradient}, {scores_gradient}, log2_sums};
  }

  // The work of a block: keys from token `first` of the sequence.
  struct Work {
    int first = 0;
    int key_head = 0;
    int sequence = 0;
    int first_tile = 0;  // of the queries that attend to them
  };
  SLUICE_DEVICE Work work() const {
    Work of;
    of.first = block_x() * kKeys;
    of.key_head = block_y();
    of.sequence = block_z();
    of.first_tile = of.first < shape.context ? 0 : (of.first - shape.context) / kQueries;
    return of;
  }

  // One tile of queries of one head. The blocks of a head start with different tiles, so that they do not contend for
  // the same addresses.
  struct Step {
    int head;
    int tile;
  };
  SLUICE_DEVICE Step step(const Work& of, int number) const {
    const int tiles = query_tiles - of.first_tile;
    const int place = (number + block_x()) % (shape.group * tiles);
    return {of.key_head * shape.group + place / tiles, of.first_tile + place % tiles};
  }

  SLUICE_DEVICE void load(const Shared& in, const Work& of, const Step& at) const {
    const int token = at.tile * kQueries;
    const std::int64_t row = std::int64_t{of.sequence} * shape.tokens + token;
    const std::int64_t from = row * shape.query_width + at.head * kHeadDim;
    load_tile<kQueries, kThreads>(in.queries, queries + from, shape.query_width, shape.tokens - token);
    load_tile<kQueries, kThreads>(in.out_gradient, out_gradient + from, shape.query_width, shape.tokens - token);
    copy_async_commit();
  }

  // Loads this thread's statistic of a tile's rows: the log sum, to base 2, in the first half of the threads, the dot
  // product in the second. The log sum of queries that do not exist is infinity, so that their probabilities are 0.
  SLUICE_DEVICE float row_statistic(const Work& of, const Step& at) const {
    const int token = at.tile * kQueries + thread() % kQueries;
    const std::int64_t row = at.head * shape.rows + std::int64_t{of.sequence} * shape.tokens + token;
    const bool exists = token < shape.tokens;
    if (thread() >= kQueries) return exists ? dot_products[row] : 0;
    return exists ? log_sums[row] * kLog2E : kInfinity;
  }
  SLUICE_DEVICE static void store_row_statistic(const Shared& in, float number) {
    static_assert(kThreads == 2 * kQueries);
    in.log2_sums[thread()] = number;
  }

  // Replaces scores [keys, queries from `first` of the tile] by probabilities.
  SLUICE_DEVICE void probabilities(float (&scores)[kM][kPart / 8][4], const Shared& in, const Work& of, const Step& at,
                                   int first) const {
    const float scale2 = scale * kLog2E;
    const int key = of.first + warp() * 16 * kM;
    const int query = shape.context + at.tile * kQueries + first;
    // Whether no score of the warp is masked.
    const bool whole = key + 16 * kM <= query + 1;
    SLUICE_UNROLL
    for (int n = 0; n < kPart / 8; ++n) {
      const int column = n * 8 + lane() % 4 * 2;
      const Vector<float, 2> log2_sums = load_vector<float, 2>(in.log2_sums + first + column);
      SLUICE_UNROLL
      for (int m = 0; m < kM; ++m) {
        SLUICE_UNROLL
        for (int e = 0; e < 4; ++e) {
          scores[m][n][e] = exponential2(scores[m][n][e] * scale2 - log2_sums.at[e % 2]);
        }
      }
    }
    if (whole) return;
    // Keys that do not exist come after all queries that do.
    const int last_seen = query + lane() % 4 * 2;
    SLUICE_UNROLL
    for (int n = 0; n < kPart / 8; ++n) {
      SLUICE_UNROLL
      for (int m = 0; m < kM; ++m) {
        SLUICE_UNROLL
        for (int e = 0; e < 4; ++e) {
          const int of_key = key + m * 16 + lane() / 4 + e / 2 * 8;
          scores[m][n][e] = of_key > last_seen + n * 8 + e % 2 ? 0 : scores[m][n][e];
        }
      }
    }
  }

  // Their gradients: p (dp - product of the row); into shared memory as well.
  SLUICE_DEVICE static void scores_gradients(float (&scores)[kM][kPart / 8][4],
                                             const float (&gradient)[kM][kPart / 8][4], const Shared& in, int first) {
    SLUICE_UNROLL
    for (int n = 0; n < kPart / 8; ++n) {
      const Vector<float, 2> row = load_vector<float, 2>(in.dot_products() + first + n * 8 + lane() % 4 * 2);
      SLUICE_UNROLL
      for (int m = 0; m < kM; ++m) {
        SLUICE_UNROLL
        for (int e = 0; e < 4; ++e) scores[m][n][e] *= gradient[m][n][e] - row.at[e % 2];
        SLUICE_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int key = (warp() * kM + m) * 16 + lane() / 4 + half * 8;
          *reinterpret_cast<std::uint32_t*>(in.scores_gradient.piece(key, first / 8 + n) + lane() % 4 * 4) =
              pack<T>(scores[m][n][2 * half], scores[m][n][2 * half + 1]);
        }
      }
    }
  }

  SLUICE_DEVICE void add_queries_gradient(const Shared& in, const Work& of, const Step& at) const {
    using Part = QueryGradient<kHeadDim>;
    float sums[Part::kM][Part::kN][4];
    set_zero(sums);
    multiply_columns<T, kKeys>(sums, in.scores_gradient, Part::first_query() / 8, in.keys, Part::first_column() / 8);
    const std::int64_t tile = (std::int64_t{at.head} * shape.sequences + of.sequence) * query_tiles + at.tile;
    float* const to = queries_gradient + tile * Part::kElements + thread() * Part::piece();
    SLUICE_UNROLL
    for (int m = 0; m < Part::kM; ++m) {
      SLUICE_UNROLL
      for (int n = 0; n < Part::kN; ++n) {
        if (has_wide_atomics()) {
          atomic_add_4(to + Part::at(m, n, 0), sums[m][n]);
        } else {
          SLUICE_UNROLL
          for (int e = 0; e < 4; ++e) atomic_add(to + Part::at(m, n, e), sums[m][n][e]);
        }
      }
    }
  }

  // Adds, or writes, the gradients of the warp's keys, or values.
  SLUICE_DEVICE void add_keys_gradient(const float (&sums)[kM][kN][4], const Work& of, bool values,
                                       float factor) const {
    const int column = of.key_head * kHeadDim + lane() % 4 * 2;
    SLUICE_UNROLL
    for (int m = 0; m < kM; ++m) {
      SLUICE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int key = of.first + (warp() * kM + m) * 16 + lane() / 4 + half * 8;
        if (key >= shape.keys) continue;
        if (key_rows_gradient != nullptr) {
          T* const row = key_rows_gradient + (std::int64_t{of.sequence} * shape.tokens + key) * stride + column +
                         (values ? shape.key_width : std::int64_t{0});
          SLUICE_UNROLL
          for (int n = 0; n < kN; ++n) {
            store_vector(row + n * 8, Vector<T, 2>{from_float<T>(factor * sums[m][n][2 * half]),
                                                   from_float<T>(factor * sums[m][n][2 * half + 1])});
          }
          continue;
        }
        float* const row = keys_gradient + key_offset(shape, of.sequence, key, column, values);
        SLUICE_UNROLL
        for (int n = 0; n < kN; ++n) {
          Vector<float, 2> into{{0, 0}};
          if (accumulate) into = load_vector<float, 2>(row + n * 8);
          into.at[0] += factor * sums[m][n][2 * half];
          into.at[1] += factor * sums[m][n][2 * half + 1];
          store_vector(row + n * 8, into);
        }
      }
    }
  }

  SLUICE_DEVICE void operator()() const {
    if constexpr (kHasMatrixUnits) run();
  }

  SLUICE_DEVICE void run() const {
    const Shared in = shared();
    const Work of = work();
    const int column = of.key_head * kHeadDim;
    load_tile<kKeys, kThreads>(in.keys, keys + key_offset(shape, of.sequence, of.first, column, false), shape.key_width,
                               shape.keys - of.first);
    load_tile<kKeys, kThreads>(in.values, keys + key_offset(shape, of.sequence, of.first, column, true),
                               shape.key_width, shape.keys - of.first);
    Step at = step(of, 0);
    load(in, of, at);
    store_row_statistic(in, row_statistic(of, at));

    float of_keys[kM][kN][4];
    float of_values[kM][kN][4];
    set_zero(of_keys);
    set_zero(of_values);
    const int first_key = warp() * 16 * kM;
    const int steps = shape.group * (query_tiles - of.first_tile);
    for (int number = 0; number < steps; ++number) {
      // The queries are here with all that belongs to them, and all have done with the gradients of the scores before.
      copy_async_wait<0>();
      sync_block();
      SLUICE_UNROLL
      for (int first = 0; first < kQueries; first += kPart) {
        float scores[kM][kPart / 8][4];
        set_zero(scores);
        multiply_rows<T>(scores, in.keys, first_key, in.queries, first);
        probabilities(scores, in, of, at, first);
        multiply_accumulators<T>(of_values, scores, in.out_gradient, first);
        float gradient[kM][kPart / 8][4];
        set_zero(gradient);
        multiply_rows<T>(gradient, in.values, first_key, in.out_gradient, first);
        scores_gradients(scores, gradient, in, first);
        multiply_accumulators<T>(of_keys, scores, in.queries, first);
      }
      // All gradients of the scores are here, and all have done with the queries.
      sync_block();
      const Step next = step(of, number + 1);
      float row = 0;
      if (number + 1 < steps) {
        load(in, of, next);
        row = row_statistic(of, next);
      }
      add_queries_gradient(in, of, at);
      store_row_statistic(in, row);
      at = next;
    }
    add_keys_gradient(of_keys, of, false, scale);
    add_keys_gradient(of_values, of, true, 1);
  }
};

// Rounds the gradient of the queries of a tile, and puts it where it belongs.
template <class T, int kHeadDim>
struct RoundQueryGradient {
  static constexpr int kThreads = QueryGradient<kHeadDim>::kThreads;

  FlashShape shape;
  const float* from;
  T* to;
  std::int64_t stride;
  float scale;
  int query_tiles;

  SLUICE_DEVICE void operator()() const {
    using Part = QueryGradient<kHeadDim>;
    const int token = block_x() % query_tiles * kQueries;
    const int rest = block_x() / query_tiles;
    const int sequence = rest % shape.sequences;
    const int head = rest / shape.sequences;
    const float* const tile = from + block_x() * std::int64_t{Part::kElements} + thread() * Part::piece();
    for (int m = 0; m < Part::kM; ++m) {
      for (int half = 0; half < 2; ++half) {
        const int query = token + Part::first_query() + m * 16 + lane() / 4 + half * 8;
        if (query >= shape.tokens) continue;
        T* const row = to + (std::int64_t{sequence} * shape.tokens + query) * stride + head * kHeadDim +
                       Part::first_column() + lane() % 4 * 2;
        for (int n = 0; n < Part::kN && Part::first_column() + n * 8 < kHeadDim; ++n) {
          store_vector(row + n * 8, Vector<T, 2>{from_float<T>(tile[Part::at(m, n, 2 * half)] * scale),
                                                 from_float<T>(tile[Part::at(m, n, 2 * half + 1)] * scale)});
        }
      }
    }
  }
};

template <class T, int kHeadDim>
void backward(const AttentionBackward& call, Stream& stream) {
  using Kernel = FlashBackward<T, kHeadDim>;
  const AttentionSizes& shape = call.shape;
  const float scale = 1 / std::sqrt(static_cast<float>(kHeadDim));
  const int tiles = query_tiles(shape);
  const FlashShape sizes(shape, call.keys.tokens);
  auto* const queries_gradient = reinterpret_cast<float*>(call.scratch);
  launch(stream,
         {.blocks_x = (sizes.keys + Kernel::kKeys - 1) / Kernel::kKeys,
          .blocks_y = shape.kv_heads,
          .blocks_z = shape.sequences,
          .threads = Kernel::kThreads,
          .shared_bytes = Kernel::kSharedBytes},
         Kernel{.shape = sizes,
                .queries = static_cast<const T*>(call.queries),
                .keys = static_cast<const T*>(call.keys.keys),
                .log_sums = call.log_sums,
                .out_gradient = static_cast<const T*>(call.out_gradient),
                .dot_products = call.dot_products,
                .queries_gradient = queries_gradient,
                .keys_gradient = call.keys.keys_gradient,
                .accumulate = call.accumulate,
                .key_rows_gradient = static_cast<T*>(call.key_rows_gradient),
                .stride = call.queries_gradient_stride,
                .scale = scale,
                .query_tiles = tiles});
  launch(stream,
         {.blocks_x = tiles * shape.heads * shape.sequences, .threads = RoundQueryGradient<T, kHeadDim>::kThreads},
         RoundQueryGradient<T, kHeadDim>{.shape = sizes,
                                         .from = queries_gradient,
                                         .to = static_cast<T*>(call.queries_gradient),
                                         .stride = call.queries_gradient_stride,
                                         .scale = scale,
                                         .query_tiles = tiles});
}

}  // namespace

bool flash_fits(const AttentionSizes& shape, int compute_capability) {
  constexpr std::array kHeadDims = {64, 80, 96, 128};
  return compute_capability >= 80 && std::find(kHeadDims.begin(), kHeadDims.end(), shape.head_dim) != kHeadDims.end() &&
         shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0;
}

std::int64_t flash_scratch_bytes(const AttentionSizes& shape) {
  if (!flash_fits(shape, 80)) return 0;
  const std::int64_t columns = (shape.head_dim + 31) / 32 * 32;  // QueryGradient::kColumns
  return std::int64_t{query_tiles(shape)} * kQueries * shape.sequences * shape.heads * columns *
         static_cast<std::int64_t>(sizeof(float));
}

void flash_attention_backward(const AttentionBackward& call, Device& device, Stream& stream) {
  if (call.shape.tokens == 0) return;
  device.zero(call.scratch, flash_scratch_bytes(call.shape), stream);
  with_half(call.element, [&]<class T>(HalfType<T>) {
    switch (call.shape.head_dim) {
      case 64: return backward<T, 64>(call, stream);
      case 80: return backward<T, 80>(call, stream);
      case 96: return backward<T, 96>(call, stream);
      case 128: return backward<T, 128>(call, stream);
      default: throw std::logic_error("flash attention does not support this head size");
    }
  });
}

}  // namespace sluice::kernels::cuda
