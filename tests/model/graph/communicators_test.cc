#include "model/graph/communicators.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "model/errors.h"
#include "model/graph/host_program.h"
#include "model/graph/lowering.h"
#include "model/input/files.h"
#include "model/schedule/family.h"
#include "model/schedule/pytorch_csv.h"
#include "model/schedule/with_communication.h"
#include "tests/support/all_schedules.h"
#include "tests/support/command.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/shapes.h"

namespace sluice::test {
namespace {

constexpr HostWait kWaits[] = {HostWait::device, HostWait::stream, HostWait::host};

CommunicatorVerdict verdict_of(const HostProgram& program, const CommunicatorMapping& mapping, HostWait wait,
                               bool serialized = false) {
  return check_communicators(program, {.communicator = mapping.communicator, .wait = wait, .serialized = serialized});
}

// PyTorch's placement is one total order of messages: safe in every mapping and mode. Ranks 8, microbatches 16 and
// chunks 4 are sampled, smaller shapes are complete.
TEST(Communicators, PyTorchsPlacementPassesForEveryFamily) {
  const auto check = [](const Schedule& schedule) {
    if (schedule.num_ranks() == 1 || schedule.vocabulary_barriers() > 0) return;
    SCOPED_TRACE(describe(schedule));
    for (const bool runtime_actions : {false, true}) {
      const Schedule communicating = with_communication(schedule, runtime_actions);
      const HostProgram program = host_program(communicating, false);
      for (const CommunicatorMapping& mapping : communicator_mappings()) {
        ASSERT_TRUE(verdict_of(program, mapping, HostWait::host).passes()) << mapping.name;
        ASSERT_TRUE(verdict_of(program, mapping, HostWait::device, true).passes()) << mapping.name;
      }
    }
  };
  EXPECT_GT(for_each_schedule({.ranks = 3, .microbatches = 6, .chunks = 2, .slices = 2}, check), 200);
  std::mt19937 random(1);
  int large = 0;
  for (const Family& family : all_families()) {
    if (family.vocabulary_barriers > 0) continue;
    for (int i = 0; i < 8; ++i) {
      Shape shape{.p = 2 + static_cast<int>(random() % 7), .m = 1 + static_cast<int>(random() % 16)};
      shape.v = family.fixed_chunks == 0 ? 1 + static_cast<int>(random() % 4) : shape.v;
      try {
        check(make(std::string(family.name), shape));
        ++large;
      } catch (const InputError&) {  // a shape that the family rejects
      }
    }
  }
  EXPECT_GT(large, 80);
}

// The lists with these sends give the graph of the schedule alone, except for its numbering.
TEST(Communicators, PyTorchsPlacementKeepsTheGraph) {
  for_each_schedule({.ranks = 3, .microbatches = 4, .chunks = 2, .slices = 2}, [](const Schedule& schedule) {
    if (schedule.num_ranks() == 1 || schedule.vocabulary_barriers() > 0) return;
    const Schedule communicating = with_communication(schedule);
    const OpGraph plain = lower(schedule);
    const OpGraph ordered = lower(communicating);
    ASSERT_EQ(ordered.size(), plain.size());
    ASSERT_EQ(ordered.num_edges(), plain.num_edges());
  });
}

TEST(Communicators, ALateSendIsADeadlockEvenWithBuffers) {
  // Rank 0 sends F1 only after B0, whose gradient rank 1 computes after receiving F1.
  const Schedule schedule = schedule_from_csv(
      "0F0,0SEND_F0,0F1,0RECV_B0,0B0,0SEND_F1,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n",
      "s.csv");
  EXPECT_EQ(test::error_from<ScheduleError>([&] { lower(schedule); }),
            "deadlock, each waits for the next: 0RECV_B0 at row 1, cell 4 -[match]-> 1SEND_B0 at row 2, cell 6 "
            "-[data]-> 1B0 at row 2, cell 5 -[compute]-> 1F1 at row 2, cell 4 -[data]-> 1RECV_F1 at row 2, cell 3 "
            "-[match]-> 0SEND_F1 at row 1, cell 6 -[stream]-> 0B0 at row 1, cell 5 -[data]-> 0RECV_B0 at row 1, "
            "cell 4");
}

TEST(Communicators, CyclesOfOpsNameCellsOfTables) {
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

// --- random programs ---------------------------------------------------------------------------------------------

// A random program: messages between ranks in one total order, in groups with computes between, and then, if
// `shuffled`, some neighbors of the lists exchanged.
HostProgram random_program(std::mt19937& random, bool shuffled) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  HostProgram program;
  const int ranks = 2 + below(3);
  program.ranks.resize(static_cast<std::size_t>(ranks));
  program.data.resize(program.ranks.size());
  struct Entry {
    bool compute = false;
    int collective = -1;
    Post post;
    bool joins = false;  // the group of the entry before
  };
  std::vector<std::vector<Entry>> lists(program.ranks.size());
  const int messages = 2 + below(9);
  for (int i = 0; i < messages; ++i) {
    const int from = below(ranks);
    const int to = (from + 1 + below(ranks - 1)) % ranks;
    program.messages.push_back({from, to, below(3), below(2) == 0});
    const auto message = static_cast<std::uint32_t>(i);
    if (below(2) == 0) lists[static_cast<std::size_t>(from)].push_back({.compute = true});
    lists[static_cast<std::size_t>(from)].push_back({.post = {message, true}, .joins = below(4) == 0});
    lists[static_cast<std::size_t>(to)].push_back({.post = {message, false}, .joins = below(4) == 0});
    if (below(2) == 0) lists[static_cast<std::size_t>(to)].push_back({.compute = true});
    if (below(8) == 0) {
      for (auto& list : lists) list.push_back({.collective = static_cast<int>(program.collectives.size())});
      program.collectives.push_back(below(2) == 0 ? "pipeline" : "dp");
    }
  }
  for (auto& list : lists) {
    for (std::size_t i = 0; shuffled && i + 1 < list.size(); ++i) {
      if (below(4) == 0) std::swap(list[i], list[i + 1]);
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& list = lists[static_cast<std::size_t>(rank)];
    auto& data = program.data[static_cast<std::size_t>(rank)];
    std::uint32_t last_compute = ~0U;
    std::vector<std::uint32_t> received;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].compute) {
        const std::uint32_t item = program.add_compute(rank);
        for (const std::uint32_t each : received) data.emplace_back(each, item);
        received.clear();
        last_compute = item;
      } else if (list[i].collective >= 0) {
        program.add_collective(rank, static_cast<std::uint32_t>(list[i].collective));
      } else {
        std::vector<Post> group = {list[i].post};
        // Grouping keeps the properties only if the order stays a total one: only in shuffled lists.
        while (shuffled && i + 1 < list.size() && list[i + 1].joins && !list[i + 1].compute &&
               list[i + 1].collective < 0)
          group.push_back(list[++i].post);
        const std::uint32_t item = program.add_group(rank, group);
        if (last_compute != ~0U && below(2) == 0) data.emplace_back(last_compute, item);
        received.push_back(item);
      }
    }
  }
  return program;
}

// Whether all ranks reach their ends, by simulating events until nothing changes. Independent of the graph: each rank
// has a program counter per queue, and an item starts and ends by the rules of the documentation.
bool completes(const HostProgram& program, const CommunicatorModel& model) {
  const std::size_t ranks = program.ranks.size();
  std::vector<std::vector<char>> started(ranks), ended(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    started[r].assign(program.ranks[r].size(), 0);
    ended[r].assign(program.ranks[r].size(), 0);
  }
  const auto queues_of = [&](const HostItem& item) {
    std::set<std::string> out;
    if (item.kind == HostItem::Kind::compute) return out;
    if (model.serialized) return std::set<std::string>{"gpu"};
    if (item.kind == HostItem::Kind::collective) return std::set<std::string>{program.collectives[item.first]};
    for (std::uint32_t i = 0; i < item.count; ++i) {
      out.insert(model.communicator(program.messages[program.posts[item.first + i].message]));
    }
    return out;
  };
  const auto may_start = [&](std::size_t r, std::size_t i) {
    const auto& list = program.ranks[r];
    const auto queues = queues_of(list[i]);
    for (std::size_t before = 0; before < i; ++before) {
      if (ended[r][before] != 0) continue;
      if (model.wait == HostWait::host) return false;
      const bool computes = list[before].kind == HostItem::Kind::compute;
      if (computes && (list[i].kind == HostItem::Kind::compute || model.wait == HostWait::stream)) return false;
      for (const std::string& queue : queues_of(list[before])) {
        if (queues.contains(queue)) return false;
      }
    }
    for (const auto& [first, second] : program.data[r]) {
      if (second == i && ended[r][first] == 0) return false;
    }
    return true;
  };
  // The position of a started post among those of its channel pairs it with the other end.
  struct End {
    std::size_t rank, item;
  };
  std::map<std::tuple<std::string, int, int>, std::pair<std::vector<End>, std::vector<End>>> channels;
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
      const HostItem& item = program.ranks[r][i];
      for (std::uint32_t k = 0; item.kind == HostItem::Kind::group && k < item.count; ++k) {
        const Post& post = program.posts[item.first + k];
        const Message& m = program.messages[post.message];
        auto& channel = channels[{model.communicator(m), m.from, m.to}];
        (post.send ? channel.first : channel.second).push_back({r, i});
      }
    }
  }
  const auto may_end = [&](std::size_t r, std::size_t i) {
    const HostItem& item = program.ranks[r][i];
    if (item.kind == HostItem::Kind::collective) {
      for (std::size_t other = 0; other < ranks; ++other) {
        for (std::size_t k = 0; k < program.ranks[other].size(); ++k) {
          const HostItem& its = program.ranks[other][k];
          if (its.kind == HostItem::Kind::collective && its.first == item.first && started[other][k] == 0) return false;
        }
      }
    }
    for (const auto& [key, channel] : channels) {
      for (std::size_t k = 0; k < channel.first.size(); ++k) {
        const End& send = channel.first[k];
        const End& receive = channel.second[k];
        if (send.rank == r && send.item == i && !model.buffered && started[receive.rank][receive.item] == 0)
          return false;
        if (receive.rank == r && receive.item == i && started[send.rank][send.item] == 0) return false;
      }
    }
    return true;
  };
  bool all = false;
  for (bool moves = true; moves;) {
    moves = false;
    all = true;
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
        const auto set = [&](char& flag) {
          flag = 1;
          moves = true;
        };
        if (started[r][i] == 0 && may_start(r, i)) set(started[r][i]);
        if (started[r][i] != 0 && ended[r][i] == 0 && may_end(r, i)) set(ended[r][i]);
        all &= ended[r][i] != 0;
      }
    }
  }
  return all;
}

TEST(Communicators, EqualAnEventSimulation) {
  std::mt19937 random(36);
  int hung = 0;
  int ran = 0;
  for (int i = 0; i < (small_scope() ? 5000 : 100'000); ++i) {
    const HostProgram program = random_program(random, true);
    const CommunicatorMapping& mapping = communicator_mappings()[random() % communicator_mappings().size()];
    const CommunicatorModel model{.communicator = mapping.communicator,
                                  .wait = kWaits[random() % 3],
                                  .serialized = random() % 4 == 0,
                                  .buffered = random() % 4 == 0};
    const bool completed = completes(program, model);
    ASSERT_EQ(!check_communicators(program, model).hangs(), completed) << i << " " << mapping.name;
    ++(completed ? ran : hung);
  }
  EXPECT_GT(hung, 500);
  EXPECT_GT(ran, 500);
}

TEST(Communicators, ListsOfOneTotalOrderPass) {
  std::mt19937 random(7);
  for (int i = 0; i < 1000; ++i) {
    const HostProgram program = random_program(random, false);
    for (const CommunicatorMapping& mapping : communicator_mappings()) {
      for (const HostWait wait : kWaits) {
        for (const bool serialized : {false, true}) {
          ASSERT_TRUE(verdict_of(program, mapping, wait, serialized).passes()) << i << " " << mapping.name;
        }
      }
    }
  }
}

// Pairing may change with the communicators, so that the property is of programs without crossed messages.
TEST(Communicators, SplittingAQueueNeverCausesAHang) {
  std::mt19937 random(8);
  const auto mappings = communicator_mappings();
  // Coarser mappings by index, each with one that divides it.
  const std::pair<int, int> splits[] = {{0, 1}, {0, 2}, {2, 3}, {3, 4}, {1, 4}};
  int tried = 0;
  for (int i = 0; i < (small_scope() ? 800 : 3000); ++i) {
    const HostProgram program = random_program(random, true);
    for (const auto& [coarse, fine] : splits) {
      for (const HostWait wait : kWaits) {
        const CommunicatorVerdict whole = verdict_of(program, mappings[coarse], wait);
        if (whole.hangs()) continue;
        const CommunicatorVerdict split = verdict_of(program, mappings[fine], wait);
        if (!whole.crossed.empty() || !split.crossed.empty()) continue;
        ASSERT_FALSE(split.hangs());
        ++tried;
      }
    }
    for (const CommunicatorMapping& mapping : mappings) {
      if (!verdict_of(program, mapping, HostWait::device, true).hangs()) {
        ASSERT_FALSE(verdict_of(program, mapping, HostWait::device).hangs());
      }
      if (verdict_of(program, mapping, HostWait::host).hangs()) continue;
      ASSERT_FALSE(verdict_of(program, mapping, HostWait::stream).hangs());
      ASSERT_FALSE(verdict_of(program, mapping, HostWait::device).hangs());
    }
  }
  EXPECT_GT(tried, 1000);
}

// Each step of a cycle waits for the next one, and none occurs twice.
TEST(Communicators, CyclesAreSimple) {
  std::mt19937 random(9);
  for (int i = 0; i < 1000; ++i) {
    const HostProgram program = random_program(random, true);
    const CommunicatorVerdict found = verdict_of(program, communicator_mappings()[0], HostWait::stream);
    if (!found.hangs()) continue;
    std::set<std::string> items;
    for (const CycleStep& step : found.cycle) ASSERT_TRUE(items.insert(step.item).second) << to_string(found.cycle);
    ASSERT_GT(items.size(), 1U);
  }
}

TEST(Communicators, AreReadFromFiles) {
  const TemporaryFolder folder;
  const std::string path = folder.path("c.json");
  const auto mapping = [&](const std::string& rules) {
    write_file_whole(path, R"({"schema": "sluice.communicators/1", "communicators": )" + rules + "}");
    return communicator_mapping(path, "--communicators");
  };
  const auto error = [&](const std::string& rules) {
    try {
      static_cast<void>(mapping(rules).communicator({.from = 0, .to = 1, .stage = 0}));
    } catch (const InputError& e) {
      return std::string(e.what()).substr(path.size());
    }
    return std::string("accepted");
  };
  const CommunicatorMapping read = mapping(
      R"([{"name": "down", "direction": "forward", "rank_pairs": [[0, 1]]}, {"name": "wrap", "stage_pairs": [[1, 2]]},
          {"name": "rest"}])");
  EXPECT_EQ(read.communicator({.from = 0, .to = 1, .stage = 0}), "down");
  EXPECT_EQ(read.communicator({.from = 1, .to = 0, .stage = 1}), "wrap");
  EXPECT_EQ(read.communicator({.from = 1, .to = 0, .stage = 1, .forward = false}), "rest");
  EXPECT_EQ(
      error(R"([{"name": "a", "direction": "backward"}])"),
      ": /communicators: expected one for each message, got none for activations from stage 0 on rank 0 to rank 1");
  EXPECT_EQ(error(R"([{"nam": "a"}])").substr(0, 24), ": /communicators/0/name:");
  EXPECT_EQ(error(R"([{"name": "a", "rank_pairs": [[0]]}])"),
            ": /communicators/0/rank_pairs/0: expected [sender, receiver], got [0]");
  try {
    communicator_mapping("edges", "--communicators");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_EQ(
        std::string(e.what()),
        "--communicators: expected one, direction, pair, edge, logical or a .json file, got 'edges'; did you mean "
        "'edge'?");
  }
}

}  // namespace
}  // namespace sluice::test
