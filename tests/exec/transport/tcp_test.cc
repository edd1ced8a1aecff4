// Control messages over TCP, between ranks that are threads.

#include "exec/transport/tcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "model/to_size.h"
#include "tests/support/first_says.h"

namespace sluice::test {
namespace {

using namespace exec;  // NOLINT(google-build-using-namespace)
using std::chrono::milliseconds;
using testing::HasSubstr;

// Runs `work` on `ranks` of `size` ranks. Returns the errors, by rank.
std::vector<std::string> on_ranks(int size, const std::function<void(Transport&)>& work, int ranks = 0,
                                  milliseconds patience = milliseconds(60000)) {
  std::vector<std::string> errors(to_size(size));
  FirstSays said;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < (ranks > 0 ? ranks : size); ++rank) {
    threads.emplace_back([&, rank, broadcast = said.to(rank)] {
      try {
        work(*make_tcp_transport(rank, size, broadcast, patience));
      } catch (const std::exception& error) {
        errors[to_size(rank)] = error.what();
      }
    });
  }
  threads.clear();
  return errors;
}

std::vector<std::byte> bytes_of(int rank, std::size_t count) {
  std::vector<std::byte> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(i % 251 + to_size(rank));
  return out;
}

TEST(Tcp, GathersAndBroadcastsAlongATree) {
  for (int size = 1; size <= 17; size += size < 9 ? 1 : 4) {
    // The bytes of a rank: none, few, or more than a socket holds.
    const auto count = [](int rank) { return rank % 3 == 0 ? std::size_t{0} : rank % 3 == 1 ? 17 : 3'000'000; };
    const auto errors = on_ranks(size, [&](Transport& transport) {
      for (int round = 0; round < 2; ++round) {
        const auto all = transport.gather(bytes_of(transport.rank(), count(transport.rank())));
        EXPECT_EQ(all.size(), transport.rank() == 0 ? to_size(size) : 0);
        for (std::size_t rank = 0; rank < all.size(); ++rank) {
          EXPECT_TRUE(all[rank] == bytes_of(static_cast<int>(rank), count(static_cast<int>(rank)))) << rank;
        }
        auto told = bytes_of(transport.rank(), 1'000'000);
        transport.broadcast(told);
        EXPECT_TRUE(told == bytes_of(0, told.size()));
        transport.barrier();
      }
    });
    EXPECT_THAT(errors, testing::Each("")) << size;
  }
}

TEST(Tcp, AnyTwoRanksHaveMessages) {
  constexpr int kSize = 5;
  const auto errors = on_ranks(kSize, [&](Transport& transport) {
    const int mine = transport.rank();
    for (int from = 0; from < kSize; ++from) {
      for (int to = 0; to < kSize; ++to) {
        std::vector<std::byte> bytes = bytes_of(mine, 1000);
        if (from != to && mine == from) transport.send(to, bytes);
        if (from != to && mine == to) transport.receive(from, bytes);
        if (mine == to) {
          EXPECT_TRUE(bytes == bytes_of(from, 1000));
        }
      }
    }
    transport.barrier();
  });
  EXPECT_THAT(errors, testing::Each(""));
}

TEST(Tcp, MissingRankIsNamed) {
  const auto errors = on_ranks(
      3, [](Transport&) {}, 2, milliseconds(300));
  EXPECT_THAT(errors[0], HasSubstr("rank 0 has waited 0.3 s for rank 2"));
}

TEST(Tcp, ProcessThatHasEndedIsNamed) {
  const auto errors = on_ranks(2, [](Transport& transport) {
    transport.barrier();
    if (transport.rank() == 0) transport.gather({});
  });
  EXPECT_THAT(errors[0], HasSubstr("from rank 1: its process has ended"));
}

TEST(Tcp, StopEndsAWait) {
  std::latch stopped(1);
  const auto errors = on_ranks(2, [&](Transport& transport) {
    if (transport.rank() == 1) return stopped.wait();
    bool elsewhere = false;
    transport.on_stop([&] { elsewhere = true; });
    {
      std::jthread stops([&] { transport.stop(); });
      std::byte never{};
      EXPECT_THROW(transport.receive(1, {&never, 1}), Stopped);
    }
    EXPECT_TRUE(elsewhere);
    stopped.count_down();
  });
  EXPECT_THAT(errors, testing::Each(""));
}

}  // namespace
}  // namespace sluice::test
