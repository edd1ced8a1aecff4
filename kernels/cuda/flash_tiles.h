#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/lanes.h"

namespace sluice::kernels::cuda {

// Building blocks of flash attention: tiles of 16-bit numbers in shared memory, and matrix multiplications of tiles.
// Accumulators and operands have the register layout of `multiply_add` in lanes.h: of 16 rows by 8 columns, lane 4 g +
// c holds rows g (elements 0 and 1) and g + 8 (2 and 3), columns 2 c and 2 c + 1.

inline constexpr float kLog2E = 1.44269504088896340736F;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// AttentionSizes with precomputed widths, and the number of tokens per sequence of the keys' buffer.
struct FlashShape {
  FlashShape(const AttentionSizes& shape, std::int64_t all_tokens)
      : sequences(shape.sequences),
        tokens(shape.tokens),
        context(static_cast<int>(shape.context)),
        keys(context + shape.tokens),
        key_tokens(all_tokens),
        heads(shape.heads),
        kv_heads(shape.kv_heads),
        group(shape.heads / shape.kv_heads),
        rows(shape.rows()),
        query_width(shape.query_width()),
        key_width(shape.key_width()) {}
  int sequences;
  int tokens;
  int context;
  int keys;  // that the slice reads of a sequence: its last query attends to all of them
  std::int64_t key_tokens;
  int heads;
  int kv_heads;
  int group;  // query heads per key head
  std::int64_t rows;
  std::int64_t query_width;
  std::int64_t key_width;
};

// Returns the offset of a token's key (or value, if `values`) in KeyRows, or in their gradients, in elements. Agrees
// with values_after of attention.h because heads of multiples of 16 elements need no padding.
SLUICE_DEVICE std::int64_t key_offset(const FlashShape& shape, int sequence, int token, int key_column, bool values) {
  const std::int64_t row = (sequence + (values ? shape.sequences : 0)) * shape.key_tokens + token;
  return row * shape.key_width + key_column;
}

// Rows of kColumns numbers (a multiple of 16) in pieces of 16 bytes. Rows are padded to a multiple of 128 bytes; within
// each 128 bytes, piece i of row r is stored at i ^ (r % 8), so that the eight rows that ldmatrix reads together are in
// different banks.
template <int kColumns>
struct Tile {
  static_assert(kColumns % 16 == 0);
  static constexpr int kPieces = kColumns / 8;
  static constexpr int kRowBytes = (kColumns + 63) / 64 * 128;
  static constexpr int kPiecesPerRow = kRowBytes / 16;  // with padding
  static constexpr int kLoadedPieces = (kPieces + 3) / 4 * 4;

  unsigned char* data;  // 128-byte aligned

  SLUICE_DEVICE unsigned char* piece(int row, int i) const { return data + row * kRowBytes + ((i ^ (row % 8)) << 4); }

  // Returns the place of this lane's row for load_matrices of the four matrices in rows row to row + 15 and pieces 0
  // and 1 (row a multiple of 8), ordered by piece. Without transposition they are A [16 rows, 16]; with transposition,
  // B of 16 inner (rows) by two tiles of columns (pieces).
  SLUICE_DEVICE static int by_piece(int row) {
    return (row + lane() % 16) * kRowBytes + ((lane() / 16 ^ lane() % 8) << 4);
  }
  // The same four matrices, ordered by row. Without transposition they are B of 16 inner (pieces) by two tiles of
  // columns (rows); with transposition, A [16 columns, 16 rows].
  SLUICE_DEVICE static int by_row(int row) {
    return (row + lane() % 8 + lane() / 16 * 8) * kRowBytes + ((lane() / 8 % 2 ^ lane() % 8) << 4);
  }
  // Returns the address `rows` rows (a multiple of 8) and i pieces (even) after such a place.
  SLUICE_DEVICE const unsigned char* at(int place, int rows, int i) const {
    return data + (place ^ (i % 8 << 4)) + rows * kRowBytes + i / 8 * 128;
  }
};

// Returns the offset of the first of the pieces that the thread copies, in rows `stride` numbers apart.
template <int kThreads, int kColumns>
SLUICE_DEVICE std::int64_t first_piece(std::int64_t stride) {
  using Of = Tile<kColumns>;
  return thread() / Of::kPiecesPerRow * stride + thread() % Of::kPiecesPerRow * 8;
}

// Starts an asynchronous copy of kRows rows, `stride` numbers apart; `from` is the thread's first_piece of them. Rows
// from `valid` on are set to zero, and so are pieces from kPieces to kLoadedPieces, so that the columns can be split
// into two halves of a multiple of 16.
template <int kRows, int kThreads, int kColumns, class T>
SLUICE_DEVICE void load_pieces(const Tile<kColumns>& tile, const T* from, std::int64_t stride, int valid) {
  using Of = Tile<kColumns>;
  constexpr int kRowsPerPass = kThreads / Of::kPiecesPerRow;
  static_assert(kThreads % Of::kPiecesPerRow == 0 && kRowsPerPass % 8 == 0 && kRows % kRowsPerPass == 0);
  const int index = reread_thread();
  const int first = index / Of::kPiecesPerRow;
  const int i = index % Of::kPiecesPerRow;
  if (i >= Of::kLoadedPieces) return;
  if (i >= Of::kPieces) valid = 0;
  unsigned char* const to = tile.piece(first, i);
  SLUICE_UNROLL
  for (int at = 0; at < kRows; at += kRowsPerPass) {
    copy_async_16(to + at * Of::kRowBytes, from + at * stride, first < valid - at);
  }
}

// The same, with the address of the first row.
template <int kRows, int kThreads, int kColumns, class T>
SLUICE_DEVICE void load_tile(const Tile<kColumns>& tile, const T* rows, std::int64_t stride, int valid) {
  load_pieces<kRows, kThreads>(tile, rows + first_piece<kThreads, kColumns>(stride), stride, valid);
}

template <int kM, int kN>
SLUICE_DEVICE void set_zero(float (&sums)[kM][kN][4]) {
  SLUICE_UNROLL
  for (int m = 0; m < kM; ++m) {
    SLUICE_UNROLL
    for (int n = 0; n < kN; ++n) {
      SLUICE_UNROLL
      for (int e = 0; e < 4; ++e) sums[m][n][e] = 0;
    }
  }
}

// sums[m][n and n + 1] += a[m] B, for both tiles of columns that load_matrices has loaded.
template <class T, int kM, int kN>
SLUICE_DEVICE void multiply_two(float (&sums)[kM][kN][4], const std::uint32_t (&a)[kM][4], const std::uint32_t (&b)[4],
                                int n) {
  const std::uint32_t first[2] = {b[0], b[1]};
  const std::uint32_t second[2] = {b[2], b[3]};
  SLUICE_UNROLL
  for (int m = 0; m < kM; ++m) {
    multiply_add<T>(sums[m][n], a[m], first);
    multiply_add<T>(sums[m][n + 1], a[m], second);
  }
}

// sums [16 kM, 8 kN] += A B^T, for rows of `a` from a_row and rows of `b` from b_row.
template <class T, int kM, int kN, int kColumns>
SLUICE_DEVICE void multiply_rows(float (&sums)[kM][kN][4], const Tile<kColumns>& a, int a_row, const Tile<kColumns>& b,
                                 int b_row) {
  const int from_a = Tile<kColumns>::by_piece(a_row);
  const int from_b = Tile<kColumns>::by_row(0);
  SLUICE_UNROLL
  for (int i = 0; i < Tile<kColumns>::kPieces; i += 2) {
    std::uint32_t of_a[kM][4];
    SLUICE_UNROLL
    for (int m = 0; m < kM; ++m) load_matrices<false>(of_a[m], a.at(from_a, 16 * m, i));
    SLUICE_UNROLL
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t of_b[4];
      load_matrices<false>(of_b, b.at(from_b, b_row + 8 * n, i));
      multiply_two<T>(sums, of_a, of_b, n);
    }
  }
}

// sums [16 kM, 8 kN] += A B, for accumulators a [16 kM, 8 kInner], rounded to 16 bits, and rows row to row + 8 kInner
// of `b`.
template <class T, int kM, int kN, int kInner, int kColumns>
SLUICE_DEVICE void multiply_accumulators(float (&sums)[kM][kN][4], const float (&a)[kM][kInner][4],
                                         const Tile<kColumns>& b, int row) {
  static_assert(kN == Tile<kColumns>::kPieces && kN % 2 == 0);
  const int from_b = Tile<kColumns>::by_piece(0);
  // All of `a` is rounded before the first multiplication, so that no float32 numbers are kept until later ones.
  std::uint32_t of_a[kInner / 2][kM][4];
  SLUICE_UNROLL
  for (int k = 0; k < kInner; k += 2) {
    SLUICE_UNROLL
    for (int m = 0; m < kM; ++m) {
      of_a[k / 2][m][0] = pack<T>(a[m][k][0], a[m][k][1]);
      of_a[k / 2][m][1] = pack<T>(a[m][k][2], a[m][k][3]);
      of_a[k / 2][m][2] = pack<T>(a[m][k + 1][0], a[m][k + 1][1]);
      of_a[k / 2][m][3] = pack<T>(a[m][k + 1][2], a[m][k + 1][3]);
    }
  }
  SLUICE_UNROLL
  for (int n = 0; n < kN; n += 2) {
    SLUICE_UNROLL
    for (int k = 0; k < kInner; k += 2) {
      std::uint32_t of_b[4];
      load_matrices<true>(of_b, b.at(from_b, row + 8 * k, n));
      multiply_two<T>(sums, of_a[k / 2], of_b, n);
    }
  }
}

// sums [16 kM, 8 kN] += A^T B, for columns of `a` from piece a_piece and of `b` from piece b_piece, over their first
// kRows rows.
template <class T, int kRows, int kM, int kN, int kColumnsA, int kColumnsB>
SLUICE_DEVICE void multiply_columns(float (&sums)[kM][kN][4], const Tile<kColumnsA>& a, int a_piece,
                                    const Tile<kColumnsB>& b, int b_piece) {
  const int from_a = Tile<kColumnsA>::by_row(0);
  const int from_b = Tile<kColumnsB>::by_piece(0);
  SLUICE_UNROLL
  for (int row = 0; row < kRows; row += 16) {
    std::uint32_t of_a[kM][4];
    SLUICE_UNROLL
    for (int m = 0; m < kM; ++m) load_matrices<true>(of_a[m], a.at(from_a, row, a_piece + 2 * m));
    SLUICE_UNROLL
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t of_b[4];
      load_matrices<true>(of_b, b.at(from_b, row, b_piece + n));
      multiply_two<T>(sums, of_a, of_b, n);
    }
  }
}

}  // namespace sluice::kernels::cuda
