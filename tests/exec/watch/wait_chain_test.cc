#include "exec/watch/wait_chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "exec/watch/recorder_file.h"
#include "model/graph/lowering.h"
#include "model/schedule/family.h"

namespace sluice::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kNow = 1'000 * kSecond;

// A run of a schedule: its graph, its workers and their activities, all idle at first.
class Scene {
 public:
  Scene(const std::string& family, int ranks, int microbatches, LoweringOptions options = {}, int data = 1,
        int tensor = 1)
      : schedule_(make_schedule(find_family(family), {.ranks = ranks, .microbatches = microbatches})),
        graph_(lower(schedule_, with_data(options, data))) {
    for (int p = 0; p < ranks; ++p) {
      for (int d = 0; d < data; ++d) {
        for (int t = 0; t < tensor; ++t) {
          owners_.push_back({.world_rank = static_cast<int>(owners_.size()),
                             .pipeline_rank = p,
                             .data_rank = d,
                             .tensor_rank = t,
                             .world_size = ranks * data * tensor});
        }
      }
    }
    workers_.resize(owners_.size());
    for (WorkerView& worker : workers_) {
      worker.seen = true;
      worker.compute = {.activity = Activity::between, .step = 2, .since_ns = kNow};
      worker.collective = {.activity = Activity::between, .step = 2, .since_ns = kNow};
    }
    limits_.floor_ns = 5 * kSecond;
  }

  const OpGraph& graph() const { return graph_; }
  const std::vector<RecorderOwner>& owners() const { return owners_; }
  WaitLimits& limits() { return limits_; }
  WorkerView& worker(int rank) { return workers_[rank]; }
  std::vector<WorkerView>& workers() { return workers_; }

  VertexId vertex(const std::string& name) const {
    for (VertexId v = 0; v < graph_.size(); ++v) {
      if (graph_.name(v) == name) return v;
    }
    ADD_FAILURE() << "no vertex " << name;
    return 0;
  }

  // Activities in step 4 that began `since` seconds ago.
  void working(int rank, const std::string& op, double since) {
    worker(rank).compute = {Activity::working, 3, vertex(op), 0, ago(since)};
  }
  void waiting(int rank, const std::string& op, const std::string& awaited, double since) {
    worker(rank).compute = {Activity::waiting, 3, vertex(op), vertex(awaited), ago(since)};
  }
  void reducing(int rank, const std::string& op, double since) {
    worker(rank).compute = {Activity::reducing, 3, vertex(op), 0, ago(since)};
  }
  void exchanging(int rank, const std::string& collective, double since) {
    worker(rank).collective = {Activity::exchanging, 3, vertex(collective), 0, ago(since)};
  }
  void collective_waiting(int rank, const std::string& collective, const std::string& awaited, double since) {
    worker(rank).collective = {Activity::waiting, 3, vertex(collective), vertex(awaited), ago(since)};
  }

  // Examines the workers for the first time.
  WaitReport examine() { return WaitChains(graph_, owners_, limits_).examine(workers_, kNow); }
  WaitChains chains() { return {graph_, owners_, limits_}; }

  static std::int64_t ago(double seconds) { return kNow - static_cast<std::int64_t>(seconds * 1e9); }

 private:
  static LoweringOptions with_data(LoweringOptions options, int data) {
    options.data_parallel = data;
    return options;
  }

  Schedule schedule_;
  OpGraph graph_;
  std::vector<RecorderOwner> owners_;
  std::vector<WorkerView> workers_;
  WaitLimits limits_;
};

// A report of a broken run, with its root.
auto IsFault(RootCause cause, int world_rank) {
  return AllOf(Field(&WaitReport::broken, true), Field(&WaitReport::cause, cause),
               Field(&WaitReport::world_rank, world_rank));
}

TEST(WaitChain, FollowsTransfersToTheOpPastItsDeadline) {
  // zb-h1 splits the backward, so that ranks have W ops.
  Scene scene("zb-h1", 4, 8);
  scene.working(2, "W(stage 2, mb 3)", 41);
  scene.waiting(3, "F(stage 3, mb 7)", "send F(stage 2, mb 7) 2->3", 40);
  scene.waiting(1, "I(stage 1, mb 6)", "send I(stage 2, mb 6) 2->1", 39);
  scene.waiting(0, "I(stage 0, mb 6)", "send I(stage 1, mb 6) 1->0", 38);
  const WaitReport report = scene.examine();
  EXPECT_THAT(report, IsFault(RootCause::slow, 2));
  EXPECT_EQ(report.step, 3);
  EXPECT_EQ(report.op, "W(stage 2, mb 3)");
  EXPECT_EQ(report.vertex, scene.vertex("W(stage 2, mb 3)"));
  EXPECT_EQ(report.root, "rank 2 has been inside W(stage 2, mb 3) for 41.0 s, past its deadline of 5.0 s");
  // Rank 0 is the farthest from the root, through rank 1.
  EXPECT_EQ(report.chain,
            "rank 0 waits for I(stage 0, mb 6) from rank 1, which waits for I(stage 1, mb 6) from rank 2, which has "
            "been inside W(stage 2, mb 3) for 41.0 s");
  ASSERT_EQ(report.links.size(), 3U);
  EXPECT_EQ(report.links[1].world_rank, 1);
  EXPECT_THAT(report.waiting, ElementsAre(0, 1, 3));
  EXPECT_THAT(report.text(), HasSubstr("\nwaiting for it: ranks 0, 1, 3"));
}

TEST(WaitChain, ChainIsOneSentence) {
  Scene scene("zb-h1", 4, 8);
  scene.working(2, "W(stage 2, mb 3)", 41);
  scene.waiting(3, "F(stage 3, mb 7)", "send F(stage 2, mb 7) 2->3", 40);
  EXPECT_EQ(scene.examine().chain,
            "rank 3 waits for F(stage 3, mb 7) from rank 2, which has been inside W(stage 2, mb 3) for 41.0 s");
}

TEST(WaitChain, IsNotBrokenWhileThePeerIsWithinItsDeadline) {
  Scene scene("1f1b", 2, 4);
  // Rank 1 waits for much longer than the floor, for one op after the other; the current one has just begun.
  scene.waiting(1, "F(stage 1, mb 0)", "send F(stage 0, mb 0) 0->1", 600);
  scene.working(0, "F(stage 0, mb 0)", 4.9);
  WaitReport report = scene.examine();
  EXPECT_FALSE(report.broken);
  EXPECT_EQ(report.cause, RootCause::none);
  EXPECT_EQ(report.world_rank, 0);
  EXPECT_THAT(report.waiting, ElementsAre(1));
  // An op that is expected to take 2 s may take 20 times that.
  scene.limits().expected_ns = [](VertexId) { return 2 * kSecond; };
  scene.limits().multiple = 20;
  scene.working(0, "F(stage 0, mb 0)", 39.9);
  EXPECT_FALSE(scene.examine().broken);
  scene.working(0, "F(stage 0, mb 0)", 40.1);
  EXPECT_TRUE(scene.examine().broken);
  EXPECT_THAT(scene.examine().root, HasSubstr("past its deadline of 40.0 s"));
}

TEST(WaitChain, OpPastItsDeadlineIsFoundWithoutWaiters) {
  Scene scene("1f1b", 2, 4);
  scene.working(1, "B(stage 1, mb 3)", 6);
  const WaitReport report = scene.examine();
  EXPECT_TRUE(report.broken);
  EXPECT_EQ(report.world_rank, 1);
  EXPECT_THAT(report.waiting, IsEmpty());
  EXPECT_EQ(report.text(), "rank 1 has been inside B(stage 1, mb 3) for 6.0 s, past its deadline of 5.0 s");
}

TEST(WaitChain, FindsTheLostMessageAndItsSender) {
  Scene scene("1f1b", 3, 4);
  scene.waiting(2, "F(stage 2, mb 1)", "send F(stage 1, mb 1) 1->2", 9);
  // Past its send: in the next op, which itself waits.
  scene.waiting(1, "B(stage 1, mb 1)", "send B(stage 2, mb 1) 2->1", 8);
  scene.waiting(0, "B(stage 0, mb 1)", "send B(stage 1, mb 1) 1->0", 7);
  ASSERT_GT(scene.vertex("B(stage 1, mb 1)"), scene.vertex("send F(stage 1, mb 1) 1->2"));
  const WaitReport report = scene.examine();
  EXPECT_THAT(report, IsFault(RootCause::lost, 1));
  EXPECT_EQ(report.op, "send F(stage 1, mb 1) 1->2");
  EXPECT_EQ(report.vertex, scene.vertex("send F(stage 1, mb 1) 1->2"));
  // Since rank 1 was seen past the send: at least 8 s.
  EXPECT_EQ(report.root,
            "send F(stage 1, mb 1) 1->2, sent by rank 1 in step 4, is lost: rank 2 has waited for F(stage 2, mb 1) for "
            "8.0 s");
  EXPECT_EQ(report.chain,
            "rank 0 waits for B(stage 0, mb 1) from rank 1, which waits for B(stage 1, mb 1) from rank 2, which waits "
            "for F(stage 2, mb 1) from rank 1, which has sent it: the message is lost");
  EXPECT_THAT(report.waiting, ElementsAre(0, 2));
}

TEST(WaitChain, RecentlySentMessageIsNotLost) {
  Scene scene("1f1b", 2, 4);
  WaitChains chains = scene.chains();
  // Rank 1 has waited for 100 s; rank 0 sent a moment ago, and has been busy with short ops since.
  const auto look = [&](double later, const std::string& op) {
    const std::int64_t now = kNow + static_cast<std::int64_t>(later * 1e9);
    scene.waiting(1, "F(stage 1, mb 0)", "send F(stage 0, mb 0) 0->1", 100);
    scene.worker(0).compute = {Activity::working, 3, scene.vertex(op), 0, now - 1'000'000};
    return chains.examine(scene.workers(), now);
  };
  EXPECT_FALSE(look(0, "F(stage 0, mb 1)").broken);
  EXPECT_FALSE(look(3, "B(stage 0, mb 0)").broken);
  EXPECT_FALSE(look(4.9, "F(stage 0, mb 2)").broken);
  // Whatever rank 0 does now: the message was seen sent more than 5 s ago.
  const WaitReport report = look(5.1, "B(stage 0, mb 1)");
  EXPECT_THAT(report, IsFault(RootCause::lost, 0));
  // The next wait begins anew.
  scene.waiting(1, "F(stage 1, mb 1)", "send F(stage 0, mb 1) 0->1", -6);
  EXPECT_FALSE(chains.examine(scene.workers(), kNow + 7 * kSecond).broken);
}

TEST(WaitChain, StepsAreDistinguished) {
  Scene scene("1f1b", 2, 4);
  scene.waiting(1, "F(stage 1, mb 0)", "send F(stage 0, mb 0) 0->1", 9);
  // Rank 0 is still in step 3, at a vertex with a higher number.
  scene.worker(0).compute = {Activity::working, 2, scene.vertex("optimizer(stage 0, step 0)"), 0, Scene::ago(8)};
  EXPECT_EQ(scene.examine().cause, RootCause::slow);
  // It has ended step 2; or, lost, step 3.
  scene.worker(0).compute = {Activity::between, 2, 0, 0, Scene::ago(8)};
  EXPECT_EQ(scene.examine().cause, RootCause::none);
  scene.worker(0).compute = {Activity::between, 3, 0, 0, Scene::ago(8)};
  EXPECT_EQ(scene.examine().cause, RootCause::lost);
  scene.worker(0).compute = {Activity::finished, 3, 0, 0, Scene::ago(8)};
  EXPECT_EQ(scene.examine().cause, RootCause::lost);
  scene.worker(0).compute = {Activity::starting, 3, 0, 0, Scene::ago(8)};
  EXPECT_EQ(scene.examine().cause, RootCause::none);
}

TEST(WaitChain, DeadProcessIsTheRootAfterTheGracePeriod) {
  Scene scene("1f1b", 3, 4);
  WaitChains chains = scene.chains();
  scene.working(1, "F(stage 1, mb 1)", 0.2);
  scene.worker(1).process = ProcessState::dead;
  scene.waiting(2, "F(stage 2, mb 1)", "send F(stage 1, mb 1) 1->2", 0.1);
  scene.waiting(0, "B(stage 0, mb 0)", "send B(stage 1, mb 0) 1->0", 0.1);
  WaitReport report = chains.examine(scene.workers(), kNow);
  EXPECT_FALSE(report.broken);
  EXPECT_EQ(report.cause, RootCause::dead);
  report = chains.examine(scene.workers(), kNow + kSecond / 2);
  EXPECT_TRUE(report.broken);
  EXPECT_EQ(report.world_rank, 1);
  EXPECT_EQ(report.op, "F(stage 1, mb 1)");
  EXPECT_EQ(report.root, "rank 1 died in step 4, inside F(stage 1, mb 1)");
  EXPECT_EQ(report.chain,
            "rank 0 waits for B(stage 0, mb 0) from rank 1, which died in step 4, inside F(stage 1, mb 1)");
  EXPECT_THAT(report.waiting, ElementsAre(0, 2));
}

TEST(WaitChain, DeadProcessPrecedesFailuresItCaused) {
  Scene scene("1f1b", 3, 4);
  scene.working(1, "F(stage 1, mb 1)", 3);
  scene.worker(1).process = ProcessState::dead;
  scene.worker(2).compute = {Activity::failed, 3, scene.vertex("F(stage 2, mb 1)"), 0, Scene::ago(2.9)};
  scene.working(0, "B(stage 0, mb 0)", 30);
  const WaitReport report = scene.examine();
  EXPECT_EQ(report.cause, RootCause::dead);
  EXPECT_EQ(report.world_rank, 1);
}

TEST(WaitChain, ProcessKilledInAnOpPrecedesOtherDeadProcesses) {
  Scene scene("1f1b", 3, 4);
  for (WorkerView& worker : scene.workers()) worker.process = ProcessState::dead;
  // The launcher terminated the others, which waited or had noticed the failure themselves.
  scene.waiting(0, "B(stage 0, mb 0)", "send B(stage 1, mb 0) 1->0", 5);
  scene.working(1, "F(stage 1, mb 1)", 3);
  scene.worker(2).compute = {Activity::failed, 3, scene.vertex("F(stage 2, mb 1)"), 0, Scene::ago(4)};
  EXPECT_EQ(scene.examine().world_rank, 1);
}

// Its collective thread has waited longer than its compute thread, or was killed inside a collective.
TEST(WaitChain, ProcessDiesAsAWhole) {
  Scene scene("1f1b", 2, 4, {}, 2);
  scene.worker(1).process = ProcessState::dead;
  scene.waiting(1, "F(stage 0, mb 2)", "gradient reduce(stage 0, step 0)", 1);
  scene.collective_waiting(1, "gradient reduce(stage 0, step 0)", "B(stage 0, mb 3)", 9);
  EXPECT_THAT(scene.examine().root, MatchesRegex(R"(rank 1 \(pipeline[^)]*\) died in step 4, waiting for .*)"));
  scene.exchanging(1, "gradient reduce(stage 0, step 0)", 9);
  EXPECT_THAT(scene.examine().root, StartsWith("rank 1 (pipeline 0, data 1, tensor 0) died in step 4, "));
}

TEST(WaitChain, ProcessThatEndsAfterFinishingIsNoFault) {
  Scene scene("1f1b", 2, 4);
  WaitChains chains = scene.chains();
  scene.worker(0).process = ProcessState::dead;
  scene.worker(0).compute.activity = Activity::finished;
  scene.worker(0).collective.activity = Activity::finished;
  for (int second = 0; second < 100; ++second) {
    EXPECT_FALSE(chains.examine(scene.workers(), kNow + second * kSecond).broken) << second;
  }
  // Between two steps it is one.
  scene.worker(0).compute.activity = Activity::between;
  chains.examine(scene.workers(), kNow + 100 * kSecond);
  EXPECT_EQ(scene.examine().cause, RootCause::dead);
}

TEST(WaitChain, FailedWorkerIsTheRoot) {
  Scene scene("1f1b", 2, 4);
  scene.worker(0).compute = {Activity::failed, 3, scene.vertex("F(stage 0, mb 2)"), 0, Scene::ago(1)};
  scene.waiting(1, "F(stage 1, mb 2)", "send F(stage 0, mb 2) 0->1", 1);
  const WaitReport report = scene.examine();
  EXPECT_TRUE(report.broken);
  EXPECT_EQ(report.cause, RootCause::failed);
  EXPECT_EQ(report.root, "rank 0 failed in step 4, inside F(stage 0, mb 2)");
  EXPECT_THAT(report.waiting, ElementsAre(1));
  scene.worker(0).compute.vertex = Doing::no_vertex;
  EXPECT_EQ(scene.examine().root, "rank 0 failed in step 4");
  EXPECT_EQ(scene.examine().vertex, std::nullopt);
}

TEST(WaitChain, CauseOfAStopPrecedesTheStoppedWorker) {
  Scene scene("1f1b", 3, 4);
  // Rank 0's process has found the lost message first, and ended its worker.
  scene.waiting(2, "F(stage 2, mb 1)", "send F(stage 1, mb 1) 1->2", 9);
  scene.waiting(1, "B(stage 1, mb 1)", "send B(stage 2, mb 1) 2->1", 8);
  scene.worker(0).compute = {Activity::stopped, 3, scene.vertex("B(stage 0, mb 1)"), 0, Scene::ago(1)};
  WaitReport report = scene.examine();
  EXPECT_EQ(report.cause, RootCause::lost);
  EXPECT_EQ(report.world_rank, 1);
  // No other fault: the stopped worker is the root after the grace period.
  scene.worker(1).compute = scene.worker(2).compute = {Activity::between, 2, 0, 0, kNow};
  report = scene.examine();
  EXPECT_TRUE(report.broken);
  EXPECT_EQ(report.cause, RootCause::failed);
  EXPECT_EQ(report.root, "rank 0 was stopped in step 4, inside B(stage 0, mb 1)");
  scene.worker(0).compute.since_ns = Scene::ago(0.1);
  EXPECT_FALSE(scene.examine().broken);
  // Its process may be gone by then.
  scene.worker(0).compute.since_ns = Scene::ago(1);
  scene.worker(0).process = ProcessState::dead;
  EXPECT_EQ(scene.examine().cause, RootCause::failed);
  // Its other thread, which recorded no end, does not explain it either.
  scene.worker(0).collective = {Activity::waiting, 3, scene.vertex("optimizer(stage 0, step 0)"),
                                scene.vertex("B(stage 0, mb 3)"), Scene::ago(20)};
  EXPECT_EQ(scene.examine().root, "rank 0 was stopped in step 4, inside B(stage 0, mb 1)");
}

TEST(WaitChain, CollectiveLeadsToTheRankThatHasNotJoined) {
  Scene scene("1f1b", 2, 4, {}, 2);
  // World ranks: (pipeline, data) = (0,0) (0,1) (1,0) (1,1). Stage 0 is reduced between ranks 0 and 1.
  scene.waiting(0, "optimizer(stage 0, step 0)", "gradient reduce(stage 0, step 0)", 9);
  scene.exchanging(0, "gradient reduce(stage 0, step 0)", 9);
  scene.collective_waiting(1, "gradient reduce(stage 0, step 0)", "B(stage 0, mb 3)", 20);
  scene.working(1, "B(stage 0, mb 2)", 12);
  const WaitReport report = scene.examine();
  EXPECT_THAT(report, IsFault(RootCause::slow, 1));
  EXPECT_EQ(report.chain,
            "rank 0 (pipeline 0, data 0, tensor 0) waits for gradient reduce(stage 0, step 0) from its collective "
            "thread, which waits in gradient reduce(stage 0, step 0) for rank 1 (pipeline 0, data 1, tensor 0), which "
            "waits for B(stage 0, mb 3) from its compute thread, which has been inside B(stage 0, mb 2) for 12.0 s");
  EXPECT_THAT(report.waiting, ElementsAre(0));
}

TEST(WaitChain, CollectiveThatAllRanksJoinedHasLostAMessage) {
  Scene scene("1f1b", 2, 4, {.global_norm = true}, 2);
  for (const int rank : {0, 2}) {
    scene.waiting(rank, rank == 0 ? "optimizer(stage 0, step 0)" : "optimizer(stage 1, step 0)", "global norm(step 0)",
                  30);
    scene.exchanging(rank, "global norm(step 0)", rank == 0 ? 4.9 : 20);
  }
  // Since the last rank joined. It is not between the replicas: the ranks of data rank 1 are in another group.
  EXPECT_FALSE(scene.examine().broken);
  scene.exchanging(0, "global norm(step 0)", 6);
  const WaitReport report = scene.examine();
  EXPECT_TRUE(report.broken);
  EXPECT_EQ(report.cause, RootCause::lost);
  EXPECT_EQ(report.op, "global norm(step 0)");
  EXPECT_THAT(report.root, HasSubstr("has been in global norm(step 0) for 6.0 s since its last rank joined"));
}

TEST(WaitChain, IdleCollectiveThreadWaitsForItsComputeThread) {
  Scene scene("1f1b", 1, 4, {}, 2);
  scene.exchanging(0, "gradient reduce(stage 0, step 0)", 9);
  scene.waiting(0, "optimizer(stage 0, step 0)", "gradient reduce(stage 0, step 0)", 9);
  scene.worker(1).collective = {Activity::starting, 0, 0, 0, Scene::ago(900)};
  scene.worker(1).compute = {Activity::working, 2, scene.vertex("B(stage 0, mb 3)"), 0, Scene::ago(7)};
  const WaitReport report = scene.examine();
  EXPECT_EQ(report.cause, RootCause::slow);
  EXPECT_EQ(report.world_rank, 1);
  EXPECT_THAT(report.chain,
              HasSubstr("which waits for a step to begin from its compute thread, which has been inside"));
}

TEST(WaitChain, AllReduceLeadsToTheTensorRankThatHasNotJoined) {
  Scene scene("1f1b", 2, 4, {}, 1, 4);
  // Stage 1 is on world ranks 4 to 7. Two are in the all-reduce, one still computes in the op, one has not begun it.
  scene.reducing(4, "F(stage 1, mb 1)", 8);
  scene.reducing(5, "F(stage 1, mb 1)", 8);
  scene.working(6, "F(stage 1, mb 1)", 1);
  scene.working(7, "B(stage 1, mb 0)", 9);
  WaitReport report = scene.examine();
  EXPECT_EQ(report.cause, RootCause::slow);
  EXPECT_EQ(report.world_rank, 7);
  EXPECT_THAT(report.waiting, ElementsAre(4, 5));
  EXPECT_EQ(report.chain,
            "rank 4 (pipeline 1, data 0, tensor 0) waits in an all-reduce of F(stage 1, mb 1) for rank 7 (pipeline 1, "
            "data 0, tensor "
            "3), which has been inside B(stage 1, mb 0) for 9.0 s");
  scene.working(7, "F(stage 1, mb 1)", 1);
  EXPECT_FALSE(scene.examine().broken);
  // All have joined, and no message moves.
  for (int rank = 4; rank < 8; ++rank) scene.reducing(rank, "F(stage 1, mb 1)", rank == 6 ? 4 : 8);
  EXPECT_FALSE(scene.examine().broken);
  scene.reducing(6, "F(stage 1, mb 1)", 6);
  report = scene.examine();
  EXPECT_TRUE(report.broken);
  EXPECT_EQ(report.cause, RootCause::lost);
}

TEST(WaitChain, FindsAWaitForCycle) {
  Scene scene("1f1b", 3, 4);
  // A lowered schedule never does this; a faulty executor might.
  scene.waiting(0, "B(stage 0, mb 0)", "send B(stage 1, mb 0) 1->0", 10);
  scene.waiting(1, "F(stage 1, mb 1)", "send F(stage 0, mb 1) 0->1", 9);
  scene.waiting(2, "F(stage 2, mb 1)", "send F(stage 1, mb 1) 1->2", 8);
  // Rank 0 is before its send of mb 1, as B(stage 0, mb 0) is.
  scene.worker(0).compute.vertex = scene.vertex("F(stage 0, mb 1)");
  const WaitReport report = scene.examine();
  EXPECT_THAT(report, IsFault(RootCause::cycle, 0));
  EXPECT_EQ(report.links.size(), 2U);
  EXPECT_EQ(report.root, "rank 0 has been in a wait-for cycle of 2 threads for 9.0 s");
  EXPECT_THAT(report.waiting, ElementsAre(1, 2));
  // A cycle must persist: the workers are not observed at the same moment.
  scene.worker(1).compute.since_ns = Scene::ago(4.9);
  EXPECT_FALSE(scene.examine().broken);
}

TEST(WaitChain, SenderWaitsForItsReceiver) {
  Scene scene("gpipe", 2, 4);
  // Rank 0 cannot reuse its buffer; rank 1 is busy, first within and then past its deadline.
  scene.waiting(0, "F(stage 0, mb 3)", "send F(stage 0, mb 1) 0->1", 30);
  scene.working(1, "F(stage 1, mb 0)", 4);
  EXPECT_FALSE(scene.examine().broken);
  scene.working(1, "F(stage 1, mb 0)", 6);
  WaitReport report = scene.examine();
  EXPECT_EQ(report.cause, RootCause::slow);
  EXPECT_EQ(report.chain, "rank 0 sends F(stage 0, mb 1) to rank 1, which has been inside F(stage 1, mb 0) for 6.0 s");
  // A blocking send is an op: its own deadline does not apply while the receiver is busy.
  scene.working(0, "send F(stage 0, mb 1) 0->1", 30);
  scene.working(1, "F(stage 1, mb 0)", 4);
  EXPECT_FALSE(scene.examine().broken);
  // The receiver takes it, and it does not come through.
  scene.waiting(1, "F(stage 1, mb 1)", "send F(stage 0, mb 1) 0->1", 30);
  report = scene.examine();
  EXPECT_EQ(report.cause, RootCause::slow);
  EXPECT_EQ(report.op, "send F(stage 0, mb 1) 0->1");
}

TEST(WaitChain, RecomputationDoesNotHideTheReceiver) {
  Scene scene("1f1b", 2, 4, {.recompute = true});
  // The receiver stands before the op, its recomputation is part of it.
  scene.waiting(0, "B(stage 0, mb 0)", "send F(stage 0, mb 1) 0->1", 30);
  scene.working(1, "F(stage 1, mb 0)", 1);
  EXPECT_FALSE(scene.examine().broken);
  scene.waiting(1, "B(stage 1, mb 0)", "send F(stage 0, mb 1) 0->1", 1);
  EXPECT_FALSE(scene.examine().broken);
}

TEST(WaitChain, IdleWorkersHaveASeparateLimit) {
  Scene scene("1f1b", 2, 4);
  scene.limits().idle_ns = 60 * kSecond;
  scene.waiting(1, "F(stage 1, mb 0)", "send F(stage 0, mb 0) 0->1", 59);
  scene.worker(0).compute = {Activity::between, 2, 0, 0, Scene::ago(59)};
  EXPECT_FALSE(scene.examine().broken);
  scene.worker(0).compute.since_ns = Scene::ago(61);
  const WaitReport report = scene.examine();
  EXPECT_THAT(report, IsFault(RootCause::stopped, 0));
  EXPECT_EQ(report.root, "rank 0 has been between steps, after step 3, for 61.0 s");
  // Without waiters there is no limit.
  scene.worker(1).compute = {Activity::between, 2, 0, 0, Scene::ago(600)};
  EXPECT_FALSE(scene.examine().broken);
}

TEST(WaitChain, SuspendedProcessIsAtFault) {
  Scene scene("1f1b", 2, 4);
  WaitChains chains = scene.chains();
  scene.working(0, "F(stage 0, mb 0)", 0);
  scene.worker(0).process = ProcessState::suspended;
  EXPECT_FALSE(chains.examine(scene.workers(), kNow).broken);
  const WaitReport report = chains.examine(scene.workers(), kNow + 6 * kSecond);
  EXPECT_TRUE(report.broken);
  EXPECT_EQ(report.cause, RootCause::stopped);
  EXPECT_THAT(report.root, HasSubstr("rank 0 has been suspended in step 4, inside F(stage 0, mb 0)"));
}

// What a rank waits for in a measurement is not recorded: it may be any that cannot act.
TEST(WaitChain, RankThatCannotActIsAtFaultInAMeasurement) {
  for (const ProcessState state : {ProcessState::suspended, ProcessState::dead}) {
    Scene scene("1f1b", 3, 4);
    WaitChains chains = scene.chains();
    for (int rank = 0; rank < 3; ++rank) {
      const auto phase = static_cast<VertexId>(ControlPhase::measurement);
      scene.worker(rank).compute = {Activity::between, -1, phase, 0, Scene::ago(rank == 2 ? 4 : 300)};
    }
    EXPECT_FALSE(chains.examine(scene.workers(), kNow).broken);
    scene.worker(2).process = state;
    EXPECT_FALSE(chains.examine(scene.workers(), kNow).broken);
    const WaitReport report = chains.examine(scene.workers(), kNow + 6 * kSecond);
    EXPECT_TRUE(report.broken);
    EXPECT_EQ(report.world_rank, 2);
    const bool dead = state == ProcessState::dead;
    EXPECT_THAT(report.root, HasSubstr(dead ? "rank 2 died at the measurement"
                                            : "rank 2 has been suspended at the measurement for 6.0 s"));
    EXPECT_THAT(report.chain, HasSubstr("measures together with rank 2, which "));
    EXPECT_THAT(report.waiting, ElementsAre(0, 1));
  }
}

TEST(WaitChain, MeasurementHasTheLimitOfAControlMessage) {
  Scene scene("1f1b", 2, 4);
  const auto measuring = [](double since) {
    return Doing{Activity::between, -1, static_cast<VertexId>(ControlPhase::measurement), 0, Scene::ago(since)};
  };
  scene.worker(0).compute = measuring(599);
  scene.worker(1).compute = measuring(1);
  EXPECT_FALSE(scene.examine().broken);
  scene.worker(0).compute = measuring(601);
  const WaitReport report = scene.examine();
  EXPECT_TRUE(report.broken);
  EXPECT_EQ(report.world_rank, 0);
  EXPECT_EQ(report.root, "rank 0 has been at the measurement for 601.0 s");
}

// The message was sent, or the collective joined, long before the process was suspended.
TEST(WaitChain, MessageOfASuspendedProcessIsNotLost) {
  for (const bool collective : {false, true}) {
    Scene scene("1f1b", 2, 4, {.global_norm = true});
    WaitChains chains = scene.chains();
    if (collective) {
      scene.exchanging(0, "global norm(step 0)", 4);
      scene.exchanging(1, "global norm(step 0)", 4);
    } else {
      scene.waiting(1, "F(stage 1, mb 0)", "send F(stage 0, mb 0) 0->1", 4.5);
      scene.working(0, "F(stage 0, mb 1)", 4);
    }
    EXPECT_FALSE(chains.examine(scene.workers(), kNow).broken);
    scene.worker(0).process = ProcessState::suspended;
    for (const double later : {0.1, 2.0, 4.9}) {
      const WaitReport report = chains.examine(scene.workers(), kNow + static_cast<std::int64_t>(later * 1e9));
      EXPECT_FALSE(report.broken) << report.text();
    }
    const WaitReport report = chains.examine(scene.workers(), kNow + 6 * kSecond);
    EXPECT_THAT(report, IsFault(RootCause::stopped, 0));
    EXPECT_THAT(report.waiting, ElementsAre(1));
    // When it continues, its op and its message have their whole limits again.
    scene.worker(0).process = ProcessState::running;
    EXPECT_FALSE(chains.examine(scene.workers(), kNow + 7 * kSecond).broken);
    EXPECT_FALSE(chains.examine(scene.workers(), kNow + 11 * kSecond).broken);
    EXPECT_TRUE(chains.examine(scene.workers(), kNow + 13 * kSecond).broken);
  }
}

TEST(WaitChain, RankThatHangsBeforeItJoinsACollectiveIsAtFault) {
  Scene scene("1f1b", 2, 4, {}, 2);
  scene.exchanging(0, "gradient reduce(stage 0, step 0)", 9);
  scene.worker(1).collective = {Activity::working, 3, scene.vertex("gradient reduce(stage 0, step 0)"), 0,
                                Scene::ago(9)};
  const WaitReport report = scene.examine();
  EXPECT_THAT(report, IsFault(RootCause::slow, 1));
  EXPECT_THAT(report.waiting, ElementsAre(0));
}

// Outside the steps: rank 0 gathers messages of the others, or writes a checkpoint.
TEST(WaitChain, ControlWaitsHaveTheirOwnLimits) {
  const auto outside = [](ControlPhase phase, double since) {
    return Doing{Activity::between, 3, static_cast<VertexId>(phase), 0, Scene::ago(since)};
  };
  const auto waits_for = [](ControlPhase phase, VertexId rank, double since) {
    return Doing{Activity::coordinating, 3, static_cast<VertexId>(phase), rank, Scene::ago(since)};
  };
  Scene scene("1f1b", 3, 4);
  scene.worker(0).compute = waits_for(ControlPhase::report, 1, 100);
  scene.worker(2).compute = waits_for(ControlPhase::report, 0, 100);
  scene.working(1, "B(stage 1, mb 3)", 6);
  WaitReport report = scene.examine();
  EXPECT_TRUE(report.broken);
  EXPECT_EQ(report.world_rank, 1);
  EXPECT_EQ(report.chain,
            "rank 2 waits at the report of the step, after step 4, for rank 0, which waits at the report of the step, "
            "after step 4, for rank 1, which has been inside B(stage 1, mb 3) for 6.0 s");
  scene.worker(1).compute = outside(ControlPhase::report, 599);
  EXPECT_FALSE(scene.examine().broken);
  scene.worker(1).compute = outside(ControlPhase::report, 601);
  report = scene.examine();
  EXPECT_TRUE(report.broken);
  EXPECT_EQ(report.root, "rank 1 has been at the report of the step, after step 4, for 601.0 s");
  EXPECT_THAT(report.waiting, ElementsAre(0, 2));
  scene.limits().floor_ns = 1000 * kSecond;  // by --deadline
  scene.worker(0).compute = outside(ControlPhase::checkpoint, 601);
  scene.worker(1).compute = waits_for(ControlPhase::checkpoint, 0, 700);
  EXPECT_FALSE(scene.examine().broken);
  scene.limits().floor_ns = 5 * kSecond;
  EXPECT_EQ(scene.examine().root, "rank 0 has been at the checkpoint, after step 4, for 601.0 s");
  // Both ends of a message wait for each other: it is under way, or lost.
  scene.worker(0).compute = waits_for(ControlPhase::next_step, 1, 599);
  scene.worker(1).compute = waits_for(ControlPhase::next_step, 0, 700);
  EXPECT_FALSE(scene.examine().broken);
  scene.worker(0).compute.since_ns = Scene::ago(602);
  report = scene.examine();
  EXPECT_TRUE(report.broken);
  EXPECT_EQ(report.cause, RootCause::lost);
  EXPECT_EQ(report.root,
            "rank 0 has waited at the start of the next step, after step 4, for rank 1 for 602.0 s: a message between "
            "the two is lost");
  scene.worker(1).process = ProcessState::dead;
  EXPECT_EQ(scene.examine().cause, RootCause::dead);
}

TEST(WaitChain, WorkerThatMissesACompletedCollectiveIsStopped) {
  Scene scene("1f1b", 1, 4, {}, 2);
  scene.waiting(0, "optimizer(stage 0, step 0)", "gradient reduce(stage 0, step 0)", 9);
  scene.worker(0).collective = {Activity::between, 3, 0, 0, Scene::ago(8)};
  const WaitReport report = scene.examine();
  EXPECT_TRUE(report.broken);
  EXPECT_EQ(report.cause, RootCause::stopped);
  EXPECT_THAT(report.root,
              HasSubstr("has waited for gradient reduce(stage 0, step 0) for 8.0 s, although it is complete"));
}

TEST(WaitChain, InvisibleWorkersAreNotAtFault) {
  Scene scene("1f1b", 2, 4);
  scene.worker(0) = WorkerView{};
  scene.waiting(1, "F(stage 1, mb 0)", "send F(stage 0, mb 0) 0->1", 1000);
  const WaitReport report = scene.examine();
  EXPECT_FALSE(report.broken);
  EXPECT_EQ(report.chain, "rank 1 waits for F(stage 1, mb 0) from rank 0, which is not visible from this host");
  for (WorkerView& worker : scene.workers()) worker = WorkerView{};
  EXPECT_EQ(scene.examine().world_rank, -1);
  EXPECT_FALSE(scene.examine().broken);
}

TEST(WaitChain, VerticesOutsideTheGraphAreIgnored) {
  Scene scene("1f1b", 2, 4);
  scene.worker(0).compute = {Activity::waiting, 3, 1'000'000, 2'000'000, Scene::ago(100)};
  scene.worker(1).compute = {Activity::working, 3, 1'000'000, 0, Scene::ago(100)};
  EXPECT_FALSE(scene.examine().broken);
}

TEST(WaitChain, CollectiveRanksDependOnTheKindOfCollective) {
  const Scene scene("1f1b", 2, 4, {.gather_parameters = true, .tied_embedding = true, .global_norm = true}, 2, 2);
  const auto ranks = [&](const std::string& name, int world_rank) {
    return collective_ranks(scene.graph(), scene.owners(), scene.vertex(name), world_rank);
  };
  // World rank = (pipeline x 2 + data) x 2 + tensor.
  EXPECT_THAT(ranks("gradient reduce(stage 1, step 0)", 5), ElementsAre(5, 7));
  EXPECT_THAT(ranks("parameter gather(stage 0, step 0)", 0), ElementsAre(0, 2));
  EXPECT_THAT(ranks("tied embedding(stage 0, step 0)", 3), ElementsAre(3, 7));
  EXPECT_THAT(ranks("global norm(step 0)", 2), ElementsAre(2, 3, 6, 7));
}

TEST(WaitChain, ExpertsAreReducedOverTheRanksThatHaveTheSameOnes) {
  const Scene scene("1f1b", 2, 4, {.global_norm = true}, 2, 2);
  const auto with = [&](int expert_ranks) {
    std::vector<RecorderOwner> owners = scene.owners();
    for (RecorderOwner& owner : owners) owner.expert_ranks = expert_ranks;
    return owners;
  };
  const auto ranks = [&](int expert_ranks, const std::string& name, int world_rank) {
    return collective_ranks(scene.graph(), with(expert_ranks), scene.vertex(name), world_rank);
  };
  // All four ranks of a stage have the experts, then each second, then one; the other gradients are those of data
  // ranks.
  EXPECT_THAT(ranks(1, "gradient reduce(stage 1, step 0)", 5), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(ranks(2, "gradient reduce(stage 1, step 0)", 5), ElementsAre(5, 7));
  EXPECT_THAT(ranks(4, "gradient reduce(stage 1, step 0)", 5), ElementsAre(5, 7));
  EXPECT_THAT(ranks(2, "global norm(step 0)", 2), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(expert_group(with(1), 5), ElementsAre(5));
  EXPECT_THAT(expert_group(with(2), 5), ElementsAre(4, 5));
  EXPECT_THAT(expert_group(with(4), 5), ElementsAre(4, 5, 6, 7));
}

}  // namespace
}  // namespace sluice::test
