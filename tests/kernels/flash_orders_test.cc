// Properties of flash attention that only the emulation can test: results do not depend on the order of warps and of
// asynchronous copies, as they would if a barrier were missing, and tiles are read without bank conflicts.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/flash_tiles.h"
#include "kernels/cuda/launch.h"
#include "kernels/emulation/device.h"
#include "tests/kernels/sliced_attention.h"

namespace sluice::test {
namespace {

using emulation::ExecutionOrder;

class FlashAttentionOrders : public ::testing::TestWithParam<ExecutionOrder> {};

TEST_P(FlashAttentionOrders, ResultsDoNotDependOnTheOrder) {
  // With capability 90, four numbers are added by one instruction, and are stored in another order.
  for (const int capability : {80, 90}) {
    const auto device = emulation::make_device({.compute_capability = capability, .order = GetParam()});
    expect_attention_equals_naive({.heads = 2, .slices = {129, 70}, .first_run = 1}, *device);
    for (const int head_dim : {80, 96, 128}) {
      expect_attention_equals_naive({.head_dim = head_dim, .slices = {129, 70}, .first_run = 1}, *device);
    }
  }
}

std::string order_name(const ::testing::TestParamInfo<ExecutionOrder>& order) {
  const bool random = order.param.warps == ExecutionOrder::Warps::random;
  if (random) return "random_" + std::to_string(order.param.seed);
  const bool first = order.param.warps == ExecutionOrder::Warps::first_ahead;
  const bool immediate = order.param.copies == ExecutionOrder::Copies::immediate;
  return std::string(first ? "first" : "last") + "_ahead_copies_" + (immediate ? "immediate" : "at_wait");
}

INSTANTIATE_TEST_SUITE_P(
    All, FlashAttentionOrders,
    ::testing::Values(ExecutionOrder{ExecutionOrder::Warps::first_ahead, ExecutionOrder::Copies::immediate},
                      ExecutionOrder{ExecutionOrder::Warps::last_ahead, ExecutionOrder::Copies::immediate},
                      ExecutionOrder{ExecutionOrder::Warps::first_ahead, ExecutionOrder::Copies::at_wait},
                      ExecutionOrder{ExecutionOrder::Warps::last_ahead, ExecutionOrder::Copies::at_wait},
                      ExecutionOrder{ExecutionOrder::Warps::random, ExecutionOrder::Copies::random, 3},
                      ExecutionOrder{ExecutionOrder::Warps::random, ExecutionOrder::Copies::random, 4}),
    order_name);

// Address that each lane passes to load_matrices, for one position in a tile, as an offset in bytes.
template <int kColumns>
struct WhereLanesPoint {
  static constexpr int kThreads = 32;
  int row;
  int piece;
  std::int64_t* by_piece;  // [32]
  std::int64_t* by_row;
  SLUICE_DEVICE void operator()() const {
    const cuda::Tile<kColumns> tile{cuda::shared_memory()};
    by_piece[cuda::lane()] = tile.at(tile.by_piece(row), 0, piece) - tile.data;
    by_row[cuda::lane()] = tile.at(tile.by_row(row), 0, piece) - tile.data;
  }
};

template <int kColumns>
void expect_all_banks() {
  const auto device = emulation::make_device({});
  const auto stream = device->make_stream(StreamPriority::normal);
  constexpr int kBytes = 80 * cuda::Tile<kColumns>::kRowBytes;
  std::vector<unsigned char> room(kBytes);
  const cuda::Tile<kColumns> tile{room.data()};
  for (int row = 0; row < 64; row += 8) {
    for (int piece = 0; piece < cuda::Tile<kColumns>::kLoadedPieces; piece += 2) {
      std::vector<std::int64_t> by_piece(32);
      std::vector<std::int64_t> by_row(32);
      cuda::launch(*stream, {.threads = 32, .shared_bytes = kBytes},
                   WhereLanesPoint<kColumns>{row, piece, by_piece.data(), by_row.data()});
      device->synchronize(*stream);
      for (std::size_t matrix = 0; matrix < 4; ++matrix) {
        std::set<std::int64_t> piece_banks;
        std::set<std::int64_t> row_banks;
        for (std::size_t i = 0; i < 8; ++i) {
          const std::size_t lane = matrix * 8 + i;
          const auto of = [&](std::size_t rows, std::size_t pieces) {
            return tile.piece(row + static_cast<int>(rows * 8 + i), piece + static_cast<int>(pieces)) - tile.data;
          };
          EXPECT_EQ(by_piece[lane], of(matrix % 2, matrix / 2));
          EXPECT_EQ(by_row[lane], of(matrix / 2, matrix % 2));
          // 32 banks of 4 bytes.
          piece_banks.insert(by_piece[lane] % 128);
          row_banks.insert(by_row[lane] % 128);
        }
        EXPECT_EQ(piece_banks.size(), 8U);
        EXPECT_EQ(row_banks.size(), 8U);
      }
    }
  }
}

TEST(FlashAttentionTiles, AreReadWithoutBankConflicts) {
  expect_all_banks<64>();
  expect_all_banks<80>();
  expect_all_banks<96>();
  expect_all_banks<128>();
}

}  // namespace
}  // namespace sluice::test
