// What only the emulation shows of flash attention: that it comes to the same whichever warp is ahead and whenever
// copies are done (or there is a point where threads fail to wait for each other), and that tiles in shared memory are
// read from all banks at once.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "kernels/cuda/flash_tiles.h"
#include "kernels/cuda/launch.h"
#include "kernels/emulation/device.h"
#include "tests/kernels/sliced_attention.h"

namespace sluice::test {
namespace {

using emulation::Schedule;

class FlashAttentionOrders : public ::testing::TestWithParam<Schedule> {};

TEST_P(FlashAttentionOrders, ComesToTheSame) {
  // Those of capability 90 add four numbers at once, and keep them in another order.
  for (const int capability : {80, 90}) {
    const auto device = emulation::make_device({.compute_capability = capability, .schedule = GetParam()});
    expect_flash_as_naive({.heads = 2, .slices = {129, 70}, .first_run = 1}, *device);
    expect_flash_as_naive({.head_dim = 128, .slices = {129, 70}, .first_run = 1}, *device);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FlashAttentionOrders,
                         ::testing::Values(Schedule{Schedule::Warps::first_ahead, Schedule::Copies::at_once},
                                           Schedule{Schedule::Warps::last_ahead, Schedule::Copies::at_once},
                                           Schedule{Schedule::Warps::first_ahead, Schedule::Copies::at_wait},
                                           Schedule{Schedule::Warps::last_ahead, Schedule::Copies::at_wait},
                                           Schedule{Schedule::Warps::random, Schedule::Copies::random, 3},
                                           Schedule{Schedule::Warps::random, Schedule::Copies::random, 4}));

// Where each lane points load_matrices, for one place in a tile, in bytes from its beginning.
template <int kColumns>
struct WhereLanesPoint {
  static constexpr int kThreads = 32;
  int row;
  int piece;
  std::int64_t* by_piece;  // [32]
  std::int64_t* by_row;
  SLUICE_DEVICE void operator()() const {
    const cuda::Tile<kColumns> tile{cuda::shared_memory()};
    by_piece[cuda::lane()] = tile.by_piece(row, piece) - tile.data;
    by_row[cuda::lane()] = tile.by_row(row, piece) - tile.data;
  }
};

template <int kColumns>
void expect_all_banks() {
  const auto device = emulation::make_device({});
  const auto stream = device->make_stream(StreamPriority::normal);
  constexpr int kBytes = 80 * kColumns * 2;
  std::vector<unsigned char> room(kBytes);
  const cuda::Tile<kColumns> tile{room.data()};
  for (int row = 0; row < 64; row += 8) {
    for (int piece = 0; piece < kColumns / 8; piece += 2) {
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

TEST(FlashAttentionTiles, AreReadFromAllBanksAtOnce) {
  expect_all_banks<64>();
  expect_all_banks<128>();
}

}  // namespace
}  // namespace sluice::test
