// The NCCL transport on a fake NCCL and emulated devices, with one thread per rank.

#include "exec/transport/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <exception>
#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "exec/transport/nccl_communicators.h"
#include "exec/transport/tcp.h"
#include "kernels/emulation/device.h"
#include "model/to_size.h"
#include "tests/support/exchange_check.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/first_says.h"

namespace sluice::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A rank of a test: its device and its communicators.
struct Rank {
  int rank;
  Device& device;
  NcclWorld& world;
  Transport& control;

  std::byte* bytes(std::int64_t count, int value) const {
    std::byte* const memory = device.allocate(count);
    std::fill(memory, memory + count, static_cast<std::byte>(value));
    return memory;
  }
};

class Nccl : public ::testing::Test {
 protected:
  // Runs `work` on every rank, beginning together. Keeps the exceptions by rank.
  void on_ranks(int size, const std::function<void(const Rank&)>& work) {
    errors_.assign(to_size(size), "");
    test::FirstSays said;
    std::latch ready(size);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const auto broadcast = said.to(rank);
        const auto device = emulation::make_device({.multiprocessors = 32, .counters = &counters_[to_size(rank)]});
        ready.arrive_and_wait();
        try {
          const auto control = make_tcp_transport(rank, size, broadcast, options_.patience);
          NcclWorld world(fake_.functions(), *device, *control, options_);
          work({rank, *device, world, *control});
        } catch (const std::exception& error) {
          errors_[rank] = error.what();
        }
      });
    }
  }
  void TearDown() override { EXPECT_THAT(fake_.misuse(), IsEmpty()); }
  void expect_no_errors() const {
    for (const std::string& error : errors_) EXPECT_EQ(error, "");
  }

  test::FakeNccl fake_;
  std::array<emulation::Counters, 4> counters_;  // by rank
  NcclOptions options_{.patience = milliseconds(120000), .abort_budget = milliseconds(20000)};
  std::vector<std::string> errors_;
};

void finish(DeviceConnection& connection, Device& device, DeviceMessage& message) {
  while (!message.placed.load() || !device.done(*message.done)) {
    connection.progress();
    std::this_thread::yield();
  }
}

TEST_F(Nccl, RanksMaySendBeforeTheyReceive) {
  constexpr std::int64_t kBytes = 100000;
  const DeviceLinks links{.edges = {{0, 1}, {1, 0}}, .groups = {}};
  on_ranks(2, [&](const Rank& mine) {
    const auto connection = mine.world.devices().connect(links, mine.device);
    for (int round = 0; round < 3; ++round) {
      DeviceMessage out;
      DeviceMessage in;
      const auto out_done = mine.device.make_event();
      const auto in_done = mine.device.make_event();
      const auto began = mine.device.make_event();
      out.data = mine.bytes(kBytes, 10 * mine.rank + round);
      in.data = mine.bytes(kBytes, 99);
      out.bytes = in.bytes = kBytes;
      out.edge = to_size(mine.rank);
      in.edge = to_size(1 - mine.rank);
      out.started = began.get();
      out.done = out_done.get();
      in.done = in_done.get();
      // Both send first: with one communicator for both directions each would wait for the receive of the other.
      connection->send(out);
      connection->receive(in);
      finish(*connection, mine.device, in);
      finish(*connection, mine.device, out);
      EXPECT_EQ(std::count(in.data, in.data + kBytes, static_cast<std::byte>(10 * (1 - mine.rank) + round)), kBytes);
      EXPECT_GE(mine.device.nanoseconds_between(*began, *out_done), 0);
    }
  });
  expect_no_errors();
  EXPECT_EQ(fake_.alive(), 0);
}

TEST_F(Nccl, EdgesDoNotWaitForEachOther) {
  // Rank 0 sends to 1 and 2. Rank 1 receives its message only after rank 2 has received its own and notified it.
  const DeviceLinks links{.edges = {{0, 1}, {0, 2}, {2, 1}}, .groups = {}};
  on_ranks(3, [&](const Rank& mine) {
    const auto connection = mine.world.devices().connect(links, mine.device);
    std::vector<std::unique_ptr<DeviceMessage>> messages;
    std::vector<std::unique_ptr<Event>> events;
    const auto message = [&](std::size_t edge) -> DeviceMessage& {
      events.push_back(mine.device.make_event());
      messages.push_back(std::make_unique<DeviceMessage>());
      messages.back()->data = mine.bytes(64, mine.rank);
      messages.back()->bytes = 64;
      messages.back()->edge = edge;
      messages.back()->done = events.back().get();
      return *messages.back();
    };
    if (mine.rank == 0) {
      connection->send(message(0));
      connection->send(message(1));
    } else if (mine.rank == 1) {
      connection->receive(message(2));
      finish(*connection, mine.device, *messages.back());
      EXPECT_EQ(messages.back()->data[0], std::byte{2});
      connection->receive(message(0));
    } else {
      connection->receive(message(1));
      finish(*connection, mine.device, *messages.back());
      EXPECT_EQ(messages.back()->data[0], std::byte{0});
      connection->send(message(2));
    }
    for (const auto& each : messages) finish(*connection, mine.device, *each);
  });
  expect_no_errors();
}

// What would be queued behind a message that waits may hold up what the other rank waits for.
TEST_F(Nccl, AMessageBehindAnotherOneOfItsEdgeIsEnqueuedLater) {
  const DeviceLinks links{.edges = {{0, 1}, {1, 0}}, .groups = {}};
  std::barrier together(2);
  on_ranks(2, [&](const Rank& mine) {
    const auto connection = mine.world.devices().connect(links, mine.device);
    std::array<DeviceMessage, 3> messages;  // there, back, there
    std::array<std::unique_ptr<Event>, 3> events;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      events[i] = mine.device.make_event();
      messages[i].data = mine.bytes(64, 10 * mine.rank + static_cast<int>(i));
      messages[i].bytes = 64;
      messages[i].edge = i % 2;
      messages[i].done = events[i].get();
    }
    const auto post_and_flush = [&] {
      for (DeviceMessage& message : messages) {
        links.edges[message.edge].first == mine.rank ? connection->send(message) : connection->receive(message);
      }
      connection->flush();
      EXPECT_TRUE(messages[0].placed.load());
      EXPECT_TRUE(messages[1].placed.load());
    };
    if (mine.rank == 0) {
      post_and_flush();
      EXPECT_FALSE(messages[2].placed.load());
    }
    together.arrive_and_wait();
    if (mine.rank == 1) post_and_flush();
    for (DeviceMessage& message : messages) finish(*connection, mine.device, message);
    for (std::size_t i = 0; i < messages.size(); ++i) {
      EXPECT_EQ(messages[i].data[63], static_cast<std::byte>(10 * (i % 2) + i));
    }
  });
  expect_no_errors();
}

// A message that waits may hold message_blocks multiprocessors; GEMMs that were to run on all would wait for it.
TEST_F(Nccl, GemmsLeaveMultiprocessorsToWaitingMessages) {
  const DeviceLinks links{.edges = {{0, 1}, {1, 0}, {2, 1}}, .groups = {{0, 1, 2}}};
  on_ranks(3, [&](const Rank& mine) {
    const auto connection = mine.world.devices().connect(links, mine.device);
    EXPECT_EQ(counters_[to_size(mine.rank)].reserved,
              options_.message_blocks * (std::array{1, 2, 0}[to_size(mine.rank)]));
    mine.control.barrier();
    const auto other = mine.world.devices().connect({.edges = {{0, 2}}, .groups = {}}, mine.device);
    EXPECT_EQ(counters_[to_size(mine.rank)].reserved, mine.rank == 2 ? options_.message_blocks : 0);
  });
  expect_no_errors();
}

TEST_F(Nccl, MessagesWaitForTheirData) {
  const DeviceLinks links{.edges = {{0, 1}}, .groups = {}};
  on_ranks(2, [&](const Rank& mine) {
    const auto connection = mine.world.devices().connect(links, mine.device);
    const auto stream = mine.device.make_stream(StreamPriority::normal);
    const auto ready = mine.device.make_event();
    const auto done = mine.device.make_event();
    DeviceMessage message;
    message.data = mine.bytes(64, 1);
    message.bytes = 64;
    message.done = done.get();
    if (mine.rank == 0) {
      emulation::put(*stream, [&] {
        std::this_thread::sleep_for(milliseconds(30));
        std::fill(message.data, message.data + 64, std::byte{7});
      });
      mine.device.record(*ready, *stream);
      message.ready = ready.get();
      connection->send(message);
      finish(*connection, mine.device, message);
    } else {
      connection->receive(message);
      finish(*connection, mine.device, message);
      EXPECT_EQ(message.data[63], std::byte{7});
    }
  });
  expect_no_errors();
}

// Groups of four ranks: 0 has ranks 0 and 1, 1 has ranks 2 and 3, 2 has all.
TEST_F(Nccl, GroupsReduceOnTheGivenStream) {
  const DeviceLinks links{.edges = {{0, 1}, {1, 2}, {2, 3}, {3, 0}}, .groups = {{0, 1}, {2, 3}, {0, 1, 2, 3}}};
  on_ranks(4, [&](const Rank& mine) {
    const auto connection = mine.world.devices().connect(links, mine.device);
    EXPECT_EQ(connection->group(0) != nullptr, mine.rank < 2);
    EXPECT_EQ(connection->group(1) != nullptr, mine.rank >= 2);
    StreamGroup* const pair = connection->group(mine.rank / 2 == 0 ? 0 : 1);
    StreamGroup* const all = connection->group(2);
    EXPECT_EQ(pair->size(), 2);
    EXPECT_EQ(pair->rank(), mine.rank % 2);
    EXPECT_EQ(all->rank(), mine.rank);
    const auto stream = mine.device.make_stream(StreamPriority::normal);
    auto* const numbers = reinterpret_cast<float*>(mine.device.allocate(8 * 4));
    for (int i = 0; i < 8; ++i) numbers[i] = static_cast<float>(mine.rank);
    pair->all_reduce_sum(numbers, 8, Element::float32, *stream);
    all->all_reduce_max(numbers + 4, 4, *stream);
    mine.device.synchronize(*stream);
    EXPECT_EQ(numbers[0], mine.rank < 2 ? 1.0F : 5.0F);
    EXPECT_EQ(numbers[4], 5.0F);
  });
  expect_no_errors();
}

// Each exchange is one operation, whose messages complete together.
TEST_F(Nccl, GroupsExchangeBlocks) {
  const DeviceLinks links{.edges = {}, .groups = {{0, 1, 2}, {0, 2}}, .exchanges = {0, 1}};
  on_ranks(3, [&](const Rank& mine) {
    const auto connection = mine.world.devices().connect(links, mine.device);
    for (int round = 0; round < 4; ++round) {
      test::expect_exchange(*connection->group(0), mine.device, round);
      if (mine.rank != 1) test::expect_exchange(*connection->group(1), mine.device, round);
    }
  });
  expect_no_errors();
}

TEST_F(Nccl, EqualLinksShareCommunicators) {
  const DeviceLinks links{.edges = {{0, 1}}, .groups = {{0, 1}}};
  const DeviceLinks other{.edges = {{1, 0}}, .groups = {}};
  std::barrier together(2);
  on_ranks(2, [&](const Rank& mine) {
    DeviceTransport& devices = mine.world.devices();
    const auto first = devices.connect(links, mine.device);
    together.arrive_and_wait();
    if (mine.rank == 0) {
      EXPECT_EQ(fake_.alive(), 2 * 3);  // the world, an edge, a group
    }
    together.arrive_and_wait();
    const auto second = devices.connect(links, mine.device);
    together.arrive_and_wait();
    if (mine.rank == 0) {
      EXPECT_EQ(fake_.alive(), 2 * 3);
    }
    together.arrive_and_wait();
    const auto third = devices.connect(other, mine.device);
    together.arrive_and_wait();
    if (mine.rank == 0) {
      EXPECT_EQ(fake_.alive(), 2 * 4);
    }
    together.arrive_and_wait();
    EXPECT_EQ(first->group(0), second->group(0));
  });
  expect_no_errors();
}

TEST_F(Nccl, StopAbortsAllCommunicatorsConcurrently) {
  // World, four ends of edges and a group: 6 communicators per rank. Aborting one hangs until all six are being
  // aborted.
  const DeviceLinks links{.edges = {{0, 1}, {1, 0}, {0, 1}, {1, 0}}, .groups = {{0, 1}}};
  fake_.abort_waits_for(6);
  std::latch posted(2);
  on_ranks(2, [&](const Rank& mine) {
    const auto connection = mine.world.devices().connect(links, mine.device);
    DeviceMessage message;
    const auto done = mine.device.make_event();
    message.data = mine.bytes(64, 1);
    message.bytes = 64;
    message.edge = to_size(mine.rank);
    message.done = done.get();
    connection->send(message);  // never received
    posted.arrive_and_wait();
    if (mine.rank == 0) mine.control.stop();
    std::jthread stops;
    if (mine.rank == 1) stops = std::jthread([&] { mine.control.stop(); });
    try {
      while (true) connection->progress();
    } catch (const Stopped&) {
    }
    if (stops.joinable()) stops.join();
    mine.device.synchronize(*done);  // what waited on the device has ended
    throw std::runtime_error("stopped");
  });
  EXPECT_THAT(errors_, ElementsAre("stopped", "stopped"));
  EXPECT_GE(fake_.most_aborts_at_once(), 6);
  EXPECT_EQ(fake_.alive(), 0);
}

TEST_F(Nccl, AbortingHasABudget) {
  options_.abort_budget = milliseconds(100);
  on_ranks(2, [&](const Rank& mine) {
    const DeviceLinks links{.edges = {{0, 1}}, .groups = {}};
    const auto connection = mine.world.devices().connect(links, mine.device);
    mine.control.barrier();
    if (mine.rank == 0) fake_.abort_hangs();
    const auto began = steady_clock::now();
    while (mine.rank == 1 && fake_.most_aborts_at_once() == 0) std::this_thread::yield();
    mine.world.abort();
    EXPECT_GE(steady_clock::now() - began, milliseconds(90));
    EXPECT_LT(steady_clock::now() - began, milliseconds(60000));
    EXPECT_THROW(connection->progress(), Stopped);
  });
}

TEST_F(Nccl, MissingRankIsReported) {
  options_.patience = milliseconds(3000);  // enough to make the world on a busy machine
  std::latch given_up(1);
  on_ranks(2, [&](const Rank& mine) {
    if (mine.rank == 1) {
      // Joins the world, but not the connections.
      given_up.wait();
      return;
    }
    const DeviceLinks links{.edges = {{0, 1}}, .groups = {}};
    try {
      mine.world.devices().connect(links, mine.device);
    } catch (...) {
      given_up.count_down();
      throw;
    }
    given_up.count_down();
  });
  EXPECT_THAT(errors_[0], HasSubstr("NCCL: making 1 edges: rank 0 has waited 3 s for the other ranks"));
}

// Rank 1 never joins the world. The thread of rank 0 stays inside NCCL.
class NcclStart : public Nccl {
 protected:
  // Calls `meanwhile` with the transport of rank 0 when that waits for rank 1. Returns the error of rank 0.
  std::string error_of_rank_0(const std::function<void(Transport&)>& meanwhile) {
    std::string error;
    test::FirstSays said;
    std::latch ended(1);
    const std::jthread other([&] {
      const auto control = make_tcp_transport(1, 2, said.to(1), milliseconds(120000));
      NcclId id;
      control->broadcast(std::as_writable_bytes(std::span(id.bytes)));
      ended.wait();
    });
    const auto device = emulation::make_device({});
    const auto control = make_tcp_transport(0, 2, said.to(0), milliseconds(120000));
    {
      const std::jthread watches([&] {
        while (fake_.waiting() == 0) std::this_thread::yield();
        meanwhile(*control);
      });
      try {
        const NcclWorld world(fake_.functions(), *device, *control, options_);
      } catch (const std::exception& thrown) {
        error = thrown.what();
      }
    }
    ended.count_down();
    EXPECT_EQ(fake_.alive(), 0);
    return error;
  }
};

TEST_F(NcclStart, MissingRankIsReported) {
  options_.patience = milliseconds(200);
  EXPECT_THAT(error_of_rank_0([](Transport&) {}),
              HasSubstr("NCCL: the world of 2 ranks: rank 0 has waited 0.2 s for the other ranks: one of them has not "
                        "arrived or cannot be reached"));
}

TEST_F(NcclStart, StopEndsIt) {
  EXPECT_EQ(error_of_rank_0([](Transport& control) { control.stop(); }), "stopped");
}

// The first use of an edge blocks both ranks inside NCCL.
TEST_F(Nccl, PatienceWithAFirstUseEnds) {
  fake_.never_connect(1);
  options_.patience = milliseconds(3000);  // enough to make the edge on a busy machine
  on_ranks(2, [&](const Rank& mine) { mine.world.devices().connect({.edges = {{0, 1}}, .groups = {}}, mine.device); });
  EXPECT_THAT(errors_, Each(HasSubstr("NCCL: edge 0 from rank 0 to rank 1: rank ")));
  EXPECT_EQ(fake_.alive(), 0);
  EXPECT_EQ(fake_.waiting(), 0);
}

TEST_F(Nccl, StopEndsAFirstUse) {
  for (const DeviceLinks& links :
       {DeviceLinks{.edges = {{0, 1}}, .groups = {}}, DeviceLinks{.edges = {}, .groups = {{0, 1}}, .exchanges = {}}}) {
    fake_.never_connect(1);
    std::atomic<bool> both_wait{false};
    on_ranks(2, [&](const Rank& mine) {
      const std::jthread stops([&] {
        while (!both_wait) {
          // With the world and the communicator of the edge or group.
          if (fake_.alive() == 2 * 2 && fake_.waiting() == 2) both_wait = true;
          std::this_thread::yield();
        }
        mine.control.stop();
      });
      mine.world.devices().connect(links, mine.device);
    });
    EXPECT_THAT(errors_, Each("stopped"));
    EXPECT_EQ(fake_.alive(), 0);
    EXPECT_EQ(fake_.waiting(), 0);
  }
}

TEST_F(Nccl, FinalizingHasABudget) {
  fake_.never_finalize(1);
  options_.abort_budget = milliseconds(500);
  on_ranks(2, [](const Rank&) {});
  expect_no_errors();
  EXPECT_EQ(fake_.alive(), 0);
  EXPECT_GE(fake_.most_aborts_at_once(), 1);
}

TEST_F(Nccl, ErrorsNameTheEdgeTheRankAndTheDevice) {
  std::latch connected(2);
  on_ranks(2, [&](const Rank& mine) {
    const DeviceLinks links{.edges = {{0, 1}}, .groups = {}};
    const auto connection = mine.world.devices().connect(links, mine.device);
    connected.arrive_and_wait();
    if (mine.rank == 1) return;
    fake_.fail(0);
    for (int look = 0; look < 10; ++look) connection->progress();
  });
  EXPECT_EQ(errors_[0],
            "NCCL for edge 0 from rank 0 to rank 1 on rank 0, emulated device: remote process exited (said the fake)");
}

TEST(NcclRounds, AreDisjoint) {
  using Rounds = std::vector<std::vector<std::size_t>>;
  // A chain of four: even and odd edges.
  EXPECT_EQ(rounds_without_overlap({{0, 1}, {1, 2}, {2, 3}}), (Rounds{{0, 2}, {1}}));
  EXPECT_EQ(rounds_without_overlap({{0, 1}, {1, 0}}), (Rounds{{0}, {1}}));
  EXPECT_EQ(rounds_without_overlap({}), Rounds{});
}

}  // namespace
}  // namespace sluice::test
