// Hangs and swaps that users of PyTorch, Megatron-LM and NCCL reported, with the communicators on which they occur.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "model/graph/communicators.h"
#include "model/graph/host_program.h"
#include "model/schedule/communication.h"
#include "model/schedule/with_communication.h"
#include "tests/support/shapes.h"

namespace sluice::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string> kMappings = {"one", "direction", "pair", "edge"};

CommunicatorVerdict verdict(const HostProgram& program, const std::string& mapping, HostWait wait = HostWait::device,
                            bool serialized = false) {
  return check_communicators(
      program,
      {.communicator = communicator_mapping(mapping, "").communicator, .wait = wait, .serialized = serialized});
}

// "hang", "swap", "hang swap" or "ok" per mapping, joined: "hang ok hang ok".
std::vector<std::string> verdicts(const HostProgram& program, HostWait wait = HostWait::device) {
  std::vector<std::string> out;
  for (const std::string& mapping : kMappings) {
    const CommunicatorVerdict found = verdict(program, mapping, wait);
    out.push_back(found.hangs() ? "hang" : found.passes() ? "ok" : "swap");
  }
  return out;
}

// Builds a program from lists in PyTorch's notation, stage s on rank s mod `ranks`; "+" joins a group. Without
// computes.
HostProgram lists(int ranks, const std::vector<std::string>& rows) {
  HostProgram program;
  program.ranks.resize(static_cast<std::size_t>(ranks));
  std::vector<std::vector<std::string>> names(program.ranks.size());
  std::map<std::string, std::uint32_t> messages;
  for (int rank = 0; rank < ranks; ++rank) {
    std::istringstream row(rows[static_cast<std::size_t>(rank)]);
    for (std::string cell; row >> cell;) {
      std::vector<Post> group;
      std::istringstream parts(cell);
      for (std::string part; std::getline(parts, part, '+');) {
        Communication c;
        EXPECT_TRUE(parse_communication(part, c)) << part;
        const bool forward = of_forward(c.kind);
        const int sender = is_send(c.kind) ? c.stage : c.stage + (forward ? -1 : 1);
        const std::string key = std::to_string(sender) + (forward ? "F" : "B") + std::to_string(c.microbatch);
        const auto [at, added] = messages.try_emplace(key, program.messages.size());
        if (added)
          program.messages.push_back({sender % ranks, (sender + (forward ? 1 : ranks - 1)) % ranks, sender, forward});
        group.push_back({at->second, is_send(c.kind)});
      }
      program.add_group(rank, group);
      names[static_cast<std::size_t>(rank)].push_back(cell);
    }
  }
  program.describe = [names](int rank, std::size_t item) { return names[static_cast<std::size_t>(rank)][item]; };
  return program;
}

// pytorch#172668, first order: both ranks send first.
TEST(CommunicatorBugs, LoopedSendsBeforeReceives) {
  const HostProgram program = lists(2, {"0SEND_F1 2RECV_F0", "1RECV_F1 1SEND_F0"});
  EXPECT_THAT(verdicts(program), ElementsAre("ok", "ok", "ok", "ok"));
  const HostProgram hangs = lists(2, {"0SEND_F1 2RECV_F0", "1SEND_F0 1RECV_F1"});
  EXPECT_THAT(verdicts(hangs), ElementsAre("hang", "hang", "hang", "ok"));
  EXPECT_EQ(
      to_string(verdict(hangs, "one").cycle),
      "0SEND_F1 -[match]-> 1RECV_F1 -[queue pipeline]-> 1SEND_F0 -[match]-> 2RECV_F0 -[queue pipeline]-> 0SEND_F1");
  EXPECT_THAT(verdicts(lists(2, {"0SEND_F1+2RECV_F0", "1SEND_F0+1RECV_F1"})), ElementsAre("ok", "ok", "ok", "ok"));
  // A group at one of both ranks is enough.
  EXPECT_THAT(verdicts(lists(2, {"0SEND_F1+2RECV_F0", "1SEND_F0 1RECV_F1"})), ElementsAre("ok", "ok", "ok", "ok"));
  // With a host that waits, more communicators do not help.
  EXPECT_THAT(verdicts(hangs, HostWait::host), ElementsAre("hang", "hang", "hang", "hang"));
  EXPECT_THAT(verdicts(hangs, HostWait::stream), ElementsAre("hang", "hang", "hang", "ok"));
}

// pytorch#172668, second order: 0SEND_F2 waits for 1RECV_F2 behind 3SEND_B0, which waits for 2RECV_B0 behind 0SEND_F2.
TEST(CommunicatorBugs, LoopedSendsOfBothDirections) {
  const HostProgram program = lists(2, {"2SEND_F1 0SEND_F2 2RECV_B0", "3RECV_F1 3SEND_B0 1RECV_F2"});
  EXPECT_THAT(verdicts(program), ElementsAre("hang", "ok", "hang", "ok"));
  EXPECT_EQ(to_string(verdict(program, "pair").cycle),
            "0SEND_F2 -[match]-> 1RECV_F2 -[queue 0:1]-> 3SEND_B0 -[match]-> 2RECV_B0 -[queue 0:1]-> 0SEND_F2");
  EXPECT_THAT(verdicts(lists(2, {"2SEND_F1 0SEND_F2+2RECV_B0", "3RECV_F1 3SEND_B0+1RECV_F2"})),
              ElementsAre("ok", "ok", "ok", "ok"));
}

// pytorch#186173: each of three ranks exchanges in a group with the next one, then with the previous one.
TEST(CommunicatorBugs, RingOfGroups) {
  const auto exchange = [](bool two_communicators) {
    HostProgram program;
    program.ranks.resize(3);
    for (int rank = 0; rank < 3; ++rank) program.messages.push_back({rank, (rank + 1) % 3, rank, true});
    for (int rank = 0; rank < 3; ++rank) program.messages.push_back({(rank + 1) % 3, rank, rank, false});
    for (int rank = 0; rank < 3; ++rank) {
      const auto here = static_cast<std::uint32_t>(rank);
      const std::uint32_t before = (here + 2) % 3;
      if (two_communicators) {
        program.add_group(rank, {{here, true}, {before, false}});
        program.add_group(rank, {{before + 3, true}, {here + 3, false}});
      } else {
        program.add_group(rank, {{here, true}, {here + 3, false}});
        program.add_group(rank, {{before, false}, {before + 3, true}});
      }
    }
    return program;
  };
  EXPECT_TRUE(verdict(exchange(false), "one").hangs());
  EXPECT_EQ(verdict(exchange(false), "one").cycle.size(), 6U);  // two groups on each of three ranks
  EXPECT_TRUE(verdict(exchange(false), "pair").passes());
  EXPECT_TRUE(verdict(exchange(true), "direction").passes());  // its test: downstream and upstream
}

// The forwards of looped stages with each receive immediately before its use, on p ranks.
HostProgram looped_forward(int p, int v, int m) {
  std::vector<std::string> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    std::string& row = rows[static_cast<std::size_t>(rank)];
    for (int stage = rank; stage < p * v; stage += p) {
      for (int mb = 0; mb < m; ++mb) {
        const std::string end = "_F" + std::to_string(mb) + " ";
        if (stage > 0) row += std::to_string(stage) + "RECV" + end;
        if (stage + 1 < p * v) row += std::to_string(stage) + "SEND" + end;
      }
    }
  }
  return lists(p, rows);
}

// pytorch#195760: the ring of all ranks needs a microbatch per rank.
TEST(CommunicatorBugs, LoopedForwardHangsFromOneMicrobatchPerRank) {
  EXPECT_THAT(verdicts(looped_forward(4, 2, 2)), ElementsAre("ok", "ok", "ok", "ok"));
  EXPECT_THAT(verdicts(looped_forward(4, 2, 4)), ElementsAre("hang", "hang", "ok", "ok"));
  EXPECT_THAT(verdicts(looped_forward(2, 2, 2)), ElementsAre("hang", "hang", "hang", "ok"));
  for (int p = 2; p <= 6; ++p) {
    for (int m = 1; m <= 8; ++m) {
      ASSERT_EQ(verdict(looped_forward(p, 2, m), "one").hangs(), m >= p) << p << " " << m;
      ASSERT_EQ(verdict(looped_forward(p, 2, m), "direction").hangs(), m >= p);
      ASSERT_TRUE(verdict(looped_forward(p, 2, m), "edge").passes());
    }
  }
}

HostProgram deferred(const std::string& family, const Shape& shape) {
  static std::vector<Schedule> kept;
  kept.reserve(64);
  kept.push_back(with_deferred_receives(with_communication(make(family, shape), true)));
  return host_program(kept.back(), false);
}

// pytorch#178815, `defer_pp_recv` of PyTorch 2.13.
TEST(CommunicatorBugs, DeferredReceivesOfInterleaved1F1BHangExceptOnEdges) {
  for (const int p : {2, 4, 8}) {
    const HostProgram program = deferred("interleaved-1f1b", {.p = p, .m = 2 * p, .v = 2});
    EXPECT_THAT(verdicts(program), ElementsAre("hang", "hang", "hang", "ok")) << p;
    EXPECT_THAT(verdicts(program, HostWait::stream), ElementsAre("hang", "hang", "hang", "ok")) << p;
  }
}

TEST(CommunicatorBugs, DeferredReceivesOfVSchedulesSwapActivationsAndGradients) {
  const HostProgram zbv = deferred("zb-v", {.p = 4, .m = 8});
  const CommunicatorVerdict on_edges = verdict(zbv, "edge");
  EXPECT_FALSE(on_edges.hangs());
  EXPECT_EQ(on_edges.num_crossed(), 9);
  EXPECT_TRUE(verdict(zbv, "logical").passes());
  EXPECT_GT(verdict(deferred("dualpipe-v", {.p = 4, .m = 8}), "edge").num_crossed(), 0);
}

// Megatron-LM#5100, #1450: pp 2, vpp 2, one group [send_prev, recv_prev, send_next, recv_next] per rank. Next and
// previous are one rank, so that the gradient, which is sent first, meets the receive of the activation.
TEST(CommunicatorBugs, MegatronsFourOpsWithOnePeerSwap) {
  const HostProgram batched = lists(2, {"2SEND_B0+2RECV_F0+0SEND_F0+0RECV_B0", "1SEND_B0+1RECV_F0+1SEND_F0+1RECV_B0"});
  EXPECT_THAT(verdicts(batched), ElementsAre("swap", "ok", "swap", "swap"));
  EXPECT_EQ(verdict(batched, "one").num_crossed(), 4);
}

// Two collectives of two ranks in different orders.
TEST(CommunicatorBugs, CollectivesInDifferentOrdersHang) {
  HostProgram program;
  program.ranks.resize(2);
  program.collectives = {"tp", "dp"};
  for (int rank = 0; rank < 2; ++rank) {
    program.add_collective(rank, rank == 0 ? 0 : 1);
    program.add_collective(rank, rank == 0 ? 1 : 0);
  }
  EXPECT_TRUE(verdict(program, "one").passes());
  EXPECT_TRUE(verdict(program, "one", HostWait::host).hangs());
  EXPECT_TRUE(verdict(program, "one", HostWait::device, true).hangs());
  program.collectives = {"tp", "tp"};
  EXPECT_EQ(verdict(program, "one").cycle.size(), 4U);
}

// Rank 0 sends A, then F; rank 1 receives F, then A: a queue each.
TEST(CommunicatorBugs, SerializedQueuesHangWhereIndependentOnesDoNot) {
  HostProgram program = lists(2, {"0SEND_F0 0SEND_F1", "1RECV_F1 1RECV_F0"});
  const CommunicatorModel apart{.communicator = [](const Message& m) { return m.stage == 0 ? "a" : "f"; }};
  program.messages[1].stage = 1;
  EXPECT_TRUE(check_communicators(program, apart).passes());
  CommunicatorModel serialized = apart;
  serialized.serialized = true;
  EXPECT_THAT(to_string(check_communicators(program, serialized).cycle), HasSubstr("[queue of the GPU]"));
}

// 1F1B with its sends before its receives, and with both in one group.
TEST(CommunicatorBugs, SendThenReceiveOf1F1B) {
  const auto list_of = [](const char* between) {
    std::vector<std::string> rows;
    const int p = 4;
    const int m = 8;
    for (int rank = 0; rank < p; ++rank) {
      const auto cell = [&](const char* what, int mb) { return std::to_string(rank) + what + std::to_string(mb); };
      const int warmup = std::min(p - rank - 1, m);
      std::string row;
      for (int mb = 0; mb < warmup; ++mb) {
        if (rank > 0) row += cell("RECV_F", mb) + " ";
        row += cell("SEND_F", mb) + " ";
      }
      if (rank > 0) row += cell("RECV_F", warmup) + " ";
      for (int i = 0; i < m - warmup; ++i) {
        if (rank + 1 < p) row += cell("SEND_F", warmup + i) + between + cell("RECV_B", i) + " ";
        const bool last = i + 1 == m - warmup;
        if (rank > 0) row += cell("SEND_B", i) + (last ? "" : between + cell("RECV_F", warmup + i + 1)) + " ";
      }
      for (int mb = m - warmup; mb < m; ++mb) {
        row += cell("RECV_B", mb) + " ";
        if (rank > 0) row += cell("SEND_B", mb) + " ";
      }
      rows.push_back(row);
    }
    return lists(p, rows);
  };
  EXPECT_THAT(verdicts(list_of(" ")), ElementsAre("hang", "ok", "hang", "ok"));
  EXPECT_THAT(verdicts(list_of("+")), ElementsAre("ok", "ok", "ok", "ok"));
}

// Swaps each pair of neighbors in the communication of each rank in turn, and counts hangs and swapped data.
struct Mutations {
  int number = 0;
  std::vector<int> hangs;
  std::vector<int> swaps;
};
Mutations mutations(const Schedule& schedule, HostWait wait) {
  Mutations out{.hangs = std::vector<int>(4, 0), .swaps = std::vector<int>(4, 0)};
  HostProgram program = host_program(schedule, false);
  for (auto& list : program.ranks) {
    std::vector<std::size_t> groups;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind == HostItem::Kind::group) groups.push_back(i);
    }
    for (std::size_t i = 0; i + 1 < groups.size(); ++i) {
      HostItem& a = list[groups[i]];
      HostItem& b = list[groups[i + 1]];
      std::swap(a, b);
      ++out.number;
      for (std::size_t k = 0; k < kMappings.size(); ++k) {
        const CommunicatorVerdict found = verdict(program, kMappings[k], wait);
        out.hangs[k] += found.hangs() ? 1 : 0;
        out.swaps[k] += found.crossed.empty() ? 0 : 1;
      }
      std::swap(a, b);
    }
  }
  return out;
}

TEST(CommunicatorBugs, MutationsOfInterleaved1F1B) {
  const Schedule schedule = with_communication(make("interleaved-1f1b", {.p = 4, .m = 8, .v = 2}), true);
  const Mutations found = mutations(schedule, HostWait::device);
  EXPECT_EQ(found.number, 220);
  EXPECT_THAT(found.hangs, ElementsAre(74, 27, 35, 0));
  EXPECT_THAT(found.swaps, ElementsAre(15, 15, 15, 15));
}

TEST(CommunicatorBugs, MutationsOfZbV) {
  const Schedule schedule = with_communication(make("zb-v", {.p = 4, .m = 8}), true);
  const Mutations found = mutations(schedule, HostWait::device);
  EXPECT_EQ(found.number, 188);
  EXPECT_THAT(found.hangs, ElementsAre(90, 62, 90, 0));
  EXPECT_THAT(found.swaps, ElementsAre(18, 12, 18, 18));
}

}  // namespace
}  // namespace sluice::test
