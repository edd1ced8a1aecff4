#include "model/graph/rendezvous.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "model/cost/uniform.h"
#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/schedule/pytorch_csv.h"
#include "model/schedule/with_communication.h"
#include "sim/engine/engine.h"
#include "tests/support/all_schedules.h"
#include "tests/support/shapes.h"

namespace sluice::test {
namespace {

std::string ring(const std::string& text, Exchange exchange) {
  return hanging_cycle(schedule_from_csv(text, "s.csv"), exchange);
}

TEST(Rendezvous, PyTorchsPlacementOfTransfersHangsForNoFamily) {
  test::for_each_schedule({}, [](const Schedule& schedule) {
    if (schedule.num_ranks() == 1) return;
    SCOPED_TRACE(test::describe(schedule));
    const Schedule communicating = with_communication(schedule);
    for (const Exchange exchange : {Exchange::buffered, Exchange::grouped, Exchange::rendezvous}) {
      ASSERT_EQ(hanging_cycle(communicating, exchange), "");
    }
    // The graph with these sends is the graph of the schedule alone, except for numbering.
    const OpGraph plain = lower(schedule);
    const OpGraph ordered = lower(communicating);
    ASSERT_EQ(ordered.size(), plain.size());
    ASSERT_EQ(ordered.num_edges(), plain.num_edges());
  });
}

// Two ranks that exchange activations and gradients at the same time: the typical case of 1F1B.
TEST(Rendezvous, TwoConcurrentSendsHangWithoutBuffers) {
  const std::string text =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  EXPECT_EQ(ring(text, Exchange::buffered), "");
  // Rank 0's second activation and rank 1's first gradient wait for each other; adjacent to their receives, they are
  // posted together.
  EXPECT_EQ(ring(text, Exchange::rendezvous),
            "0SEND_F1 at row 1, cell 4 -> 1SEND_B0 at row 2, cell 4 -> 0SEND_F1 at row 1, cell 4");
  EXPECT_EQ(ring(text, Exchange::grouped), "");
}

TEST(Rendezvous, AdjacentEntriesArePostedTogetherButNotAcrossAnOp) {
  // As above, but rank 1 runs an op between its send and its receive.
  const std::string text =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1I0,1SEND_B0,1W0,1RECV_F1,1F1,1I1,1SEND_B1,1W1\n";
  EXPECT_EQ(ring(text, Exchange::grouped), "");  // rank 0's pair meets them one after another
  const std::string apart =
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0RECV_B0,0SEND_F2,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F2,1F2,1B2,1SEND_B2\n";
  EXPECT_EQ(ring(apart, Exchange::grouped), "");
  const std::string hangs =
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n"
      "1RECV_F0,1F0,1I0,1SEND_B0,1W0,1RECV_F1,1F1,1RECV_F2,1F2,1B1,1SEND_B1,1B2,1SEND_B2\n";
  EXPECT_EQ(ring(hangs, Exchange::grouped),
            "0SEND_F1 at row 1, cell 4 -> 1SEND_B0 at row 2, cell 4 -> 0SEND_F1 at row 1, cell 4");
  EXPECT_EQ(ring(hangs, Exchange::buffered), "");
}

TEST(Rendezvous, ALateSendIsADeadlockEvenWithBuffers) {
  // Rank 0 sends F1 only after B0, whose gradient rank 1 computes after receiving F1.
  const std::string text =
      "0F0,0SEND_F0,0F1,0RECV_B0,0B0,0SEND_F1,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n";
  const std::string expected = "0RECV_B0 at row 1, cell 4 -> 1RECV_F1 at row 2, cell 3 -> 0RECV_B0 at row 1, cell 4";
  EXPECT_EQ(ring(text, Exchange::buffered), expected);
  const Schedule schedule = schedule_from_csv(text, "s.csv");
  try {
    lower(schedule);
    FAIL() << "expected a deadlock";
  } catch (const ScheduleError& error) {
    EXPECT_EQ(std::string(error.what()), "deadlock, each waits for the next: " + expected);
  }
}

TEST(Rendezvous, ASendStartsWhenItsRankReachesIt) {
  // In this order rank 0 sends F0 only after F1 and F2: it arrives after 3 s instead of 1.
  const auto first_on_rank_1 = [](const std::string& text) {
    const Schedule schedule = schedule_from_csv(text, "s.csv");
    const OpGraph graph = lower(schedule);
    const Timeline timeline = simulate(graph, price(graph, UniformCost(parse_uniform("f=1,b=1,w=1"), schedule)));
    for (VertexId v = 0; v < graph.size(); ++v) {
      if (graph.rank_of(v) == 1) return timeline.start[v];
    }
    return Duration::max();
  };
  const std::string second = "1RECV_F0,1F0,1RECV_F1,1F1,1RECV_F2,1F2,1B0,1SEND_B0,1B1,1SEND_B1,1B2,1SEND_B2\n";
  const std::string rest = "0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n";
  EXPECT_EQ(first_on_rank_1("0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2," + rest + second), std::chrono::seconds(1));
  EXPECT_EQ(first_on_rank_1("0F0,0F1,0F2,0SEND_F0,0SEND_F1,0SEND_F2," + rest + second), std::chrono::seconds(3));
}

TEST(Rendezvous, CyclesNameCellsOfTablesAndRanksOfLists) {
  // Every family that needs its receives posted earlier hangs without that: here 1f1b, at its first exchange.
  EXPECT_EQ(hanging_cycle(with_receives_just_in_time(test::make("1f1b", {.p = 2, .m = 2})), Exchange::rendezvous),
            "0SEND_F1 on rank 0 -> 1SEND_B0 on rank 1 -> 0SEND_F1 on rank 0");
  // A deadlock of ops alone: each rank's backward precedes the forward that the other waits for.
  const Schedule schedule = schedule_from_csv("0F0,,0B0\n1B0,1F0\n", "s.csv");
  try {
    lower(schedule);
    FAIL() << "expected a deadlock";
  } catch (const ScheduleError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "deadlock, each waits for the next: B(stage 1, mb 0) at row 2, cell 1 -> F(stage 1, mb 0) at row 2, cell 2 "
        "-> B(stage 1, mb 0) at row 2, cell 1");
  }
}

// An interpreter of the three kinds of exchange that reexamines all ranks until none advances.
bool runs_to_the_end(const Schedule& schedule, Exchange exchange) {
  const int ranks = schedule.num_ranks();
  struct Message {
    bool sent = false, received = false;
  };
  std::map<std::tuple<bool, int, int, int>, Message> messages;
  const auto message = [&](const Communication& c) -> Message& {
    const bool forward = of_forward(c.kind);
    const int sender = is_send(c.kind) ? c.stage : c.stage + (forward ? -1 : 1);
    return messages[{forward, sender, c.microbatch, c.slice}];
  };
  std::vector<std::size_t> at(static_cast<std::size_t>(ranks), 0);
  // The end of the group that starts at `begin`.
  const auto group_end = [&](int rank, std::size_t begin) {
    const auto list = schedule.communication(rank);
    std::size_t end = begin + 1;
    while (exchange == Exchange::grouped && end < list.size() && list[end].before == list[begin].before) ++end;
    return end;
  };
  bool moved = true;
  while (moved) {
    moved = false;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto list = schedule.communication(rank);
      std::size_t& begin = at[rank];
      if (begin == list.size()) continue;
      const std::size_t end = group_end(rank, begin);
      bool done = true;
      for (std::size_t i = begin; i < end; ++i) {
        Message& m = message(list[i]);
        const bool send = is_send(list[i].kind);
        moved |= send ? !m.sent : !m.received;
        (send ? m.sent : m.received) = true;
        done &= send ? (exchange == Exchange::buffered || m.received) : m.sent;
      }
      if (!done) continue;
      begin = end;
      moved = true;
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (at[rank] < schedule.communication(rank).size()) return false;
  }
  return true;
}

TEST(Rendezvous, AgreesWithAnExhaustiveSearch) {
  std::mt19937 random(5);
  int hung = 0;
  int ran = 0;
  test::for_each_schedule({.ranks = 4, .microbatches = 4, .chunks = 2, .slices = 2}, [&](const Schedule& schedule) {
    if (schedule.num_ranks() == 1) return;
    SCOPED_TRACE(test::describe(schedule));
    ScheduleParts parts = with_communication(schedule).parts();
    // Some sends are moved after the next receives: the order of either kind stays.
    for (auto& list : parts.communication) {
      for (std::size_t i = 0; i + 1 < list.size(); ++i) {
        if (!is_send(list[i].kind) || is_send(list[i + 1].kind) || random() % 8 != 0) continue;
        list[i].before = list[i + 1].before;
        std::swap(list[i], list[i + 1]);
      }
    }
    const Schedule changed(std::move(parts));
    for (const Exchange exchange : {Exchange::buffered, Exchange::grouped, Exchange::rendezvous}) {
      const bool runs = runs_to_the_end(changed, exchange);
      ASSERT_EQ(hanging_cycle(changed, exchange).empty(), runs);
      ++(runs ? ran : hung);
    }
  });
  EXPECT_GT(hung, 100);
  EXPECT_GT(ran, 100);
}

}  // namespace
}  // namespace sluice::test
