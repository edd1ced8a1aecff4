#include <cmath>

#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/flash_tiles.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

// A block processes 128 queries of a head, 32 per warp, and iterates over tiles of 64 keys from the first on, so that
// every query attends to some key of the first tile.
template <class T, int kHeadDim>
struct FlashForward {
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = kHeadDim == 64 ? 3 : 2;
  static constexpr int kQueries = 128;
  static constexpr int kKeys = 64;
  static constexpr int kM = 2;         // tiles of 16 queries per warp
  using Sums = Vector<float, 2 * kM>;  // of a thread's exponentials, per query
  static constexpr int kSharedBytes =
      (kQueries + 2 * kKeys) * Tile<kHeadDim>::kRowBytes + kThreads * static_cast<int>(sizeof(Sums));
  static constexpr int kN = kHeadDim / 8;

  FlashShape shape;
  const T* queries;
  const T* keys;
  T* out;
  float* log_sums;
  float scale;
  int query_tiles;

  // The work of a block.
  struct Work {
    int head;
    int sequence;
    int token;  // the first query
  };

  SLUICE_DEVICE Work work() const {
    // Blocks of one head are adjacent, since they read the same keys, and start with the last queries, which have most
    // keys.
    return {block_y(), block_z(), (query_tiles - 1 - block_x()) * kQueries};
  }

  // Sets scores of keys that follow the query to -infinity, in the tile of keys from token `first`.
  SLUICE_DEVICE void mask(float (&scores)[kM][kKeys / 8][4], int first, int token) const {
    const int index = reread_thread();
    // The key of the thread's first score minus its query.
    const int distance = index % 4 * 2 - index % kWarp / 4 - index / kWarp * 16 * kM + (first - shape.context - token);
    SLUICE_UNROLL
    for (int m = 0; m < kM; ++m) {
      SLUICE_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        SLUICE_UNROLL
        for (int e = 0; e < 4; ++e) {
          if (distance > m * 16 + e / 2 * 8 - n * 8 - e % 2) scores[m][n][e] = -kInfinity;
        }
      }
    }
  }

  // Replaces scores by exp(scale (score - maximum)), adds them to the thread's part of `all_parts`, and rescales the
  // previous sums to the new maximum.
  SLUICE_DEVICE void running_softmax(float (&scores)[kM][kKeys / 8][4], float (&maximum)[kM][2], Sums* all_parts,
                                     float (&sums)[kM][kN][4]) const {
    Sums* const stored = all_parts + reread_thread();
    Sums parts = *stored;
    const float scale2 = scale * kLog2E;
    SLUICE_UNROLL
    for (int m = 0; m < kM; ++m) {
      SLUICE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float most = maximum[m][half];
        SLUICE_UNROLL
        for (int n = 0; n < kKeys / 8; ++n) {
          most = larger(most, larger(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        }
        most = larger(most, shuffle_xor(most, 1));
        most = larger(most, shuffle_xor(most, 2));
        const float shift = most * scale2;
        const float correction = exponential2(maximum[m][half] * scale2 - shift);
        maximum[m][half] = most;
        parts.at[2 * m + half] *= correction;
        SLUICE_UNROLL
        for (int n = 0; n < kKeys / 8; ++n) {
          SLUICE_UNROLL
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            scores[m][n][e] = exponential2(scores[m][n][e] * scale2 - shift);
            parts.at[2 * m + half] += scores[m][n][e];
          }
        }
        SLUICE_UNROLL
        for (int n = 0; n < kN; ++n) {
          sums[m][n][2 * half] *= correction;
          sums[m][n][2 * half + 1] *= correction;
        }
      }
    }
    *stored = parts;
  }

  // Writes a warp's output, staged in its rows of the query tile, which no other warp reads.
  SLUICE_DEVICE void finish(const Tile<kHeadDim>& tile, const Work& of, const float (&maximum)[kM][2],
                            const Sums& parts, const float (&sums)[kM][kN][4]) const {
    const int first = warp() * 16 * kM;
    const std::int64_t first_row = std::int64_t{of.sequence} * shape.tokens + of.token;
    SLUICE_UNROLL
    for (int m = 0; m < kM; ++m) {
      SLUICE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float sum = parts.at[2 * m + half];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        const float inverse = 1.0F / sum;
        const int row = first + m * 16 + lane() / 4 + half * 8;
        SLUICE_UNROLL
        for (int n = 0; n < kN; ++n) {
          *reinterpret_cast<std::uint32_t*>(tile.piece(row, n) + lane() % 4 * 4) =
              pack<T>(sums[m][n][2 * half] * inverse, sums[m][n][2 * half + 1] * inverse);
        }
        if (lane() % 4 == 0 && of.token + row < shape.tokens) {
          log_sums[of.head * shape.rows + first_row + row] = maximum[m][half] * scale + logarithm(sum);
        }
      }
    }
    sync_warp();
    constexpr int kLanes = Tile<kHeadDim>::kPiecesPerRow;
    const int piece = lane() % kLanes;
    if (piece >= Tile<kHeadDim>::kPieces) return;
    for (int row = first + lane() / kLanes; row < first + 16 * kM; row += kWarp / kLanes) {
      if (of.token + row >= shape.tokens) break;
      T* const to = out + (first_row + row) * shape.query_width + of.head * kHeadDim + piece * 8;
      store_vector(to, load_vector<T, 8>(reinterpret_cast<const T*>(tile.piece(row, piece))));
    }
  }

  SLUICE_DEVICE void operator()() const {
    if constexpr (kHasMatrixUnits) run();
  }

  SLUICE_DEVICE void run() const {
    const Tile<kHeadDim> query_tile{shared_memory()};
    const Tile<kHeadDim> key_tile{query_tile.data + kQueries * Tile<kHeadDim>::kRowBytes};
    const Tile<kHeadDim> value_tile{key_tile.data + kKeys * Tile<kHeadDim>::kRowBytes};
    const Work of = work();

    const std::int64_t first_row = std::int64_t{of.sequence} * shape.tokens + of.token;
    load_tile<kQueries, kThreads>(query_tile, queries + first_row * shape.query_width + of.head * kHeadDim,
                                  shape.query_width, shape.tokens - of.token);
    const T* from = keys + key_offset(shape, of.sequence, 0, of.head / shape.group * kHeadDim, false) +
                    first_piece<kThreads, kHeadDim>(shape.key_width);
    const std::int64_t to_values = shape.sequences * shape.key_tokens * shape.key_width;
    load_pieces<kKeys, kThreads>(key_tile, from, shape.key_width, shape.keys);
    copy_async_commit();

    float sums[kM][kN][4];
    set_zero(sums);
    float maximum[kM][2];
    // In shared memory: the registers are needed for the matrix multiplications.
    auto* const parts = reinterpret_cast<Sums*>(value_tile.data + kKeys * Tile<kHeadDim>::kRowBytes);
    parts[thread()] = Sums{};
    SLUICE_UNROLL
    for (int m = 0; m < kM; ++m) {
      SLUICE_UNROLL
      for (int half = 0; half < 2; ++half) {
        maximum[m][half] = -kInfinity;
      }
    }

    // Two bounds: the smaller one would occupy a register.
    const int end = shape.context + of.token + kQueries;
    for (int first = 0; first < end && first < shape.keys; first += kKeys) {
      // The keys have arrived, and all threads have finished reading the previous values.
      copy_async_wait<0>();
      sync_block();
      load_pieces<kKeys, kThreads>(value_tile, from + to_values, shape.key_width, shape.keys - first);
      copy_async_commit();

      float scores[kM][kKeys / 8][4];
      set_zero(scores);
      multiply_rows<T>(scores, query_tile, warp() * 16 * kM, key_tile, 0);

      // The values have arrived, and all threads have finished reading the keys.
      copy_async_wait<0>();
      sync_block();
      from += kKeys * shape.key_width;
      if (first + kKeys < end && first + kKeys < shape.keys) {
        load_pieces<kKeys, kThreads>(key_tile, from, shape.key_width, shape.keys - first - kKeys);
      }
      copy_async_commit();

      const bool whole = warp() * 16 * kM >= first + kKeys - 1 - shape.context - of.token;
      if (!whole) mask(scores, first, of.token);
      running_softmax(scores, maximum, parts, sums);
      multiply_accumulators<T>(sums, scores, value_tile, 0);
    }
    finish(query_tile, of, maximum, parts[thread()], sums);
  }
};

template <class T, int kHeadDim>
void forward(const AttentionForward& call, Stream& stream) {
  using Kernel = FlashForward<T, kHeadDim>;
  const AttentionSizes& shape = call.shape;
  const int tiles = (shape.tokens + Kernel::kQueries - 1) / Kernel::kQueries;
  const Kernel kernel{.shape = FlashShape(shape, call.keys.tokens),
                      .queries = static_cast<const T*>(call.queries),
                      .keys = static_cast<const T*>(call.keys.keys),
                      .out = static_cast<T*>(call.out),
                      .log_sums = call.log_sums,
                      .scale = 1 / std::sqrt(static_cast<float>(kHeadDim)),
                      .query_tiles = tiles};
  launch(stream,
         {.blocks_x = tiles,
          .blocks_y = shape.heads,
          .blocks_z = shape.sequences,
          .threads = Kernel::kThreads,
          .shared_bytes = Kernel::kSharedBytes},
         kernel);
}

}  // namespace

void flash_attention_forward(const AttentionForward& call, Device&, Stream& stream) {
  if (call.shape.tokens == 0) return;
  with_half(call.element, [&]<class T>(HalfType<T>) {
    switch (call.shape.head_dim) {
      case 64: return forward<T, 64>(call, stream);
      case 80: return forward<T, 80>(call, stream);
      case 96: return forward<T, 96>(call, stream);
      case 128: return forward<T, 128>(call, stream);
      default: throw std::logic_error("flash attention does not support this head size");
    }
  });
}

}  // namespace sluice::kernels::cuda
